"""``python -m packpass doctor``."""

from __future__ import annotations

import json

import pytest
import torch

from packpass import _doctor, capture
from packpass._cli import main
from packpass._doctor import Check, diagnose, diagnosis_json, diagnosis_text, healthy, torch_support


def by_name(section: str) -> dict[str, Check]:
    return {check.name: check for check in diagnose() if check.section == section}


def test_everything_is_in_order_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "packpass is ready" in out
    assert torch.__version__ in out
    assert "vectorize_segments" in out
    assert "packpass::packed_roll" in out


def test_every_hook_is_listed_with_its_purpose() -> None:
    hooks = by_name("capture hooks")
    assert set(hooks) == {hook.name for hook in capture.hook_states()}
    assert hooks
    assert all(hook.state == "on" and hook.detail for hook in hooks.values())


def test_a_broken_hook_fails_the_doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    broken = type(capture.hook_states()[0])("symbolic-loops", "traces loops", "broken", "call_range is gone")
    monkeypatch.setattr(capture, "hook_states", lambda: [broken])
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "traces loops (call_range is gone)" in out
    assert "broken: symbolic-loops" in out


def test_a_hook_that_is_switched_off_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    off = type(capture.hook_states()[0])("symbolic-loops", "traces loops", "off", "")
    monkeypatch.setattr(capture, "hook_states", lambda: [off])
    assert healthy(diagnose())
    assert by_name("capture hooks")["symbolic-loops"].state == "off"


def test_what_cannot_be_looked_at_is_broken_and_the_rest_is_still_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[Check]:
        raise RuntimeError("no capture today")

    monkeypatch.setattr(_doctor, "_hooks", fail)
    checks = diagnose()
    assert not healthy(checks)
    assert "RuntimeError: no capture today" in diagnosis_text(checks)
    assert "devices" in diagnosis_text(checks)


@pytest.mark.parametrize(
    ("version", "state", "words"),
    [
        ("2.13.0+cpu", "ok", "the version the tests run on"),
        ("2.11.0", "ok", "supported"),
        ("2.15.0a0+git", "ok", "test themselves"),
        ("2.10.1", "broken", "needs torch >= 2.11"),
        ("1.13.1", "broken", "needs torch >= 2.11"),
        ("unknown", "note", "cannot read"),
    ],
)
def test_versions_of_torch(version: str, state: str, words: str) -> None:
    assert torch_support(version)[0] == state
    assert words in torch_support(version)[1]


def test_options_show_where_they_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKPASS_ON_REFUSAL", "warn")
    monkeypatch.setenv("PACKPASS_DISABLE", "vectorize_segments")
    monkeypatch.setenv("PACKPASS_VERFIY", "1")
    options = by_name("options")
    assert options["packpass.on_refusal"].detail == "'warn' (from PACKPASS_ON_REFUSAL)"
    assert options["packpass.verify"].detail == "False (default)"
    assert options["PACKPASS_VERFIY"].state == "note"
    assert by_name("passes")["vectorize_segments"].state == "off"


def test_a_bad_environment_is_broken_not_a_crash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACKPASS_VERIFY", "maybe")
    assert main(["doctor"]) == 1
    assert "PACKPASS_VERIFY = 'maybe'" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] is True
    assert {"section": "versions", "name": "torch"}.items() <= data["checks"][2].items()
    assert json.loads(diagnosis_json([Check("a", "b", "broken", "c")]))["ok"] is False
