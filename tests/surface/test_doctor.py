"""``python -m packpass doctor``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from packpass import capture
from packpass.cli import canaries as canary_runs
from packpass.cli import canary_process
from packpass.cli import doctor as doctor_command
from packpass.cli.canaries import CANARIES, Outcome
from packpass.cli.canary_process import outcomes
from packpass.cli.doctor import Check, diagnose, diagnosis_json, diagnosis_text, healthy
from packpass.cli.main import main
from packpass.decisions.records import Rewrite
from packpass.engine import versions
from packpass.engine.versions import torch_support
from packpass.reports.report import Report

pytestmark = pytest.mark.xdist_group("doctor")  # one process makes the whole diagnosis, for all of them

LOOPS = [c.name for c in CANARIES if "symbolic-loops" in (*c.proves, *c.needs)]


def by_name(section: str) -> dict[str, Check]:
    return {check.name: check for check in diagnose(canaries=False) if check.section == section}


@pytest.fixture(scope="module")
def checks() -> list[Check]:
    """The whole diagnosis, canaries compiled."""
    return diagnose()


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> dict[str, Outcome]:
    """Outcomes that the doctor takes for those of the canaries, to be changed by the test."""
    found = {canary.name: Outcome("ok", "a -> b", canary.name, 0.5) for canary in CANARIES}
    monkeypatch.setattr(canary_process, "outcomes", lambda names: found)
    return found


def doctor(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit status and, per section, the states of `doctor`."""
    status = main(["doctor", "--json", "-"])
    states: dict[str, dict[str, str]] = {}
    for check in json.loads(capsys.readouterr().out)["checks"]:
        states.setdefault(check["section"], {})[check["name"]] = check["state"]
    return status, states


def hook(name: str, state: str) -> capture.HookState:
    return capture.HookState(name, "traces loops", state, "call_range is gone")


# === With everything on ======================================================================================


def test_everything_is_in_order_here(checks: list[Check]) -> None:
    out = diagnosis_text(checks)
    assert "packpass is ready" in out
    assert torch.__version__ in out
    assert "vectorize_segments" in out
    assert "packpass::packed_roll" in out


def test_every_hook_is_listed_with_its_purpose(checks: list[Check]) -> None:
    hooks = {check.name: check for check in checks if check.section == "capture hooks"}
    assert set(hooks) == {hook.name for hook in capture.hook_states()}
    assert hooks
    assert all(hook.state == "on" and hook.detail for hook in hooks.values())


def test_every_canary_is_listed_with_what_was_rewritten(checks: list[Check]) -> None:
    found = {check.name: check for check in checks if check.section == "canaries"}
    assert list(found) == [canary.name for canary in CANARIES]
    assert all(check.state == "ok" and check.seconds for check in found.values())
    assert "loop over documents -> " in found["loop over zip"].detail
    assert "pack_shifts" in found["shift, unread boundaries"].detail
    assert "[carried-state]" in found["carried state is refused"].detail
    assert "1 exchange" in found["messages in a loop"].detail


def test_the_canaries_leave_this_process_alone(checks: list[Check]) -> None:
    assert checks
    assert not torch.distributed.is_initialized()
    assert os.environ.get("PACKPASS_DISABLE_HOOKS") is None


def test_without_canaries_no_group_is_shown_as_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-canaries"]) == 0
    assert {check.state for check in by_name("capture hooks").values()} == {"unproven"}
    assert "loop over zip" not in capsys.readouterr().out


# === A group is on only if its canaries were rewritten =======================================================


NEEDING = ("list-inputs", "p2p")


@pytest.mark.parametrize("group", ["gate", "symbolic-loops", "late-reads", "boundary-inputs", "list-inputs", "p2p"])
def test_one_canary_that_fails_breaks_its_group(
    group: str, canaries: dict[str, Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(capsys)[0] == 0
    last = [canary.name for canary in CANARIES if group in canary.proves][-1]
    canaries[last] = Outcome("failed", "not rewritten", last)
    status, states = doctor(capsys)
    assert (status, states["canaries"][last], states["capture hooks"][group]) == (1, "broken", "broken")
    others = {name: state for name, state in states["capture hooks"].items() if name not in (group, *NEEDING)}
    assert set(others.values()) == {"on"}
    # Without the loops nothing is known about messages and lists in them.
    for name in NEEDING:
        assert states["capture hooks"][name] == {name: "broken", "symbolic-loops": "unproven"}.get(group, "on")


def test_a_skipped_canary_proves_nothing(canaries: dict[str, Outcome], capsys: pytest.CaptureFixture[str]) -> None:
    canaries["messages in a loop"] = Outcome("skipped", "a process group is initialised", "messages in a loop")
    status, states = doctor(capsys)
    assert (status, states["capture hooks"]["p2p"], states["canaries"]["messages in a loop"]) == (
        0,
        "unproven",
        "skipped",
    )


@pytest.mark.parametrize(("right", "state", "status"), [(True, "off", 0), (False, "broken", 1)])
def test_without_a_group_that_is_switched_off_results_must_be_right(
    right: bool, state: str, status: int,
    canaries: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    name = "late read in a backward"
    canaries[name] = Outcome("failed", "2 graphs", name, right=right)
    states = [hook(s.name, "off") if s.name == "late-reads" else s for s in capture.hook_states()]
    monkeypatch.setattr(capture, "hook_states", lambda: states)
    found, shown = doctor(capsys)
    assert (found, shown["capture hooks"]["late-reads"], shown["canaries"][name]) == (status, "off", state)


def test_a_broken_hook_fails_the_doctor(
    canaries: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(capture, "hook_states", lambda: [hook("symbolic-loops", "broken")])
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "traces loops (call_range is gone). Without it: a loop over documents" in out
    assert "broken: symbolic-loops" in out


def test_a_hook_that_is_switched_off_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "hook_states", lambda: [hook("symbolic-loops", "off")])
    assert healthy(diagnose(canaries=False))
    assert by_name("capture hooks")["symbolic-loops"].state == "off"


# === The process of the canaries =============================================================================


def test_hooks_that_are_installed_and_dead_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = "import packpass.capture.hooks as hooks; hooks.wrap = lambda *args, **kwargs: None; "
    path = f"import sys; sys.path[:] = {sys.path!r}; "
    command = [sys.executable, "-c", path + dead + "from packpass.cli.canaries import main; main()"]
    monkeypatch.setattr(canary_process, "_command", lambda: command)
    status, states = doctor(capsys)
    assert status == 1
    assert "on" not in states["capture hooks"].values()
    assert set(states["canaries"].values()) == {"broken"}


def test_a_process_that_hangs_dies_or_talks() -> None:
    line = json.dumps({"state": "ok", "detail": "a -> b", "name": "first"})
    hangs = [sys.executable, "-c", f"import time; print('hello'); print({line!r}, flush=True); time.sleep(60)"]
    found = outcomes(["first", "second"], hangs, seconds=3.0)
    assert (found["first"].state, found["second"].state) == ("ok", "failed")
    assert found["second"].detail == "did not end within 3 s"
    assert not found["second"].right
    dies = [sys.executable, "-c", "import os, sys; print('no memory', file=sys.stderr, flush=True); os.abort()"]
    found = outcomes(["first"], dies)
    assert (found["first"].state, found["first"].detail) == ("failed", "the process ended with status -6: no memory")


def test_the_users_options_do_not_reach_the_canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PACKPASS_DISABLE", "PACKPASS_VERIFY", "PACKPASS_DISABLE_HOOKS"):
        monkeypatch.setenv(name, "p2p")
    show = [
        sys.executable,
        "-c",
        "import os, sys; sys.exit(','.join(n for n in os.environ if n.startswith('PACKPASS')))",
    ]
    assert outcomes(["first"], show)["first"].detail.endswith(": PACKPASS_DISABLE_HOOKS")


def test_a_rewrite_with_another_result_is_a_failure() -> None:
    report = Report()
    assert canary_runs._judge(report, "rule", True).state == "failed"
    report.add(Rewrite("other", "a.py:1", "x", "y"))
    assert canary_runs._judge(report, "rule", True).state == "failed"
    report.add(Rewrite("rule", "a.py:1", "x", "y"))
    assert canary_runs._judge(report, "rule", True) == Outcome("ok", "other: x -> y; rule: x -> y")
    wrong = canary_runs._judge(report, "rule", False)
    assert (wrong.state, wrong.right) == ("failed", False)


def test_an_exception_is_an_outcome_and_a_process_group_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Outcome:
        raise RuntimeError("no such thing")

    outcome = canary_runs.run(canary_runs.Canary("one", (), fail))
    assert (outcome.name, outcome.state, outcome.detail) == ("one", "failed", "RuntimeError: no such thing")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert canary_runs._messages() == Outcome("skipped", "a process group is initialised")


# === Versions and the rest ===================================================================================


def test_what_cannot_be_looked_at_is_broken_and_the_rest_is_still_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(canaries: bool) -> list[Check]:
        raise RuntimeError("no capture today")

    monkeypatch.setattr(doctor_command, "_hooks", fail)
    checks = diagnose(canaries=False)
    assert not healthy(checks)
    assert "RuntimeError: no capture today" in diagnosis_text(checks)
    assert "devices" in diagnosis_text(checks)


@pytest.mark.parametrize(
    ("version", "state", "words"),
    [
        ("2.13.0+cpu", "ok", "one of the tested versions (2.11 to 2.15)"),
        ("2.11.0", "ok", "tested"),
        ("2.15.0a0+git", "ok", "tested"),
        ("2.16.0", "note", "newer than the tested versions (2.11 to 2.15)"),
        ("3.0", "note", "as far as the canaries"),
        ("2.10.1", "broken", "needs torch >= 2.11"),
        ("1.13.1", "broken", "needs torch >= 2.11"),
        ("unknown", "note", "cannot read"),
    ],
)
def test_versions_of_torch(version: str, state: str, words: str) -> None:
    assert torch_support(version)[0] == state
    assert words in torch_support(version)[1]


def test_a_torch_that_is_too_old_is_an_error_that_says_so() -> None:
    versions.require_torch("2.11.0")
    versions.require_torch("unknown")
    code = "import torch; torch.__version__ = '2.10.1'; import packpass; packpass.backend"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "ImportError: packpass needs torch >= 2.11, and this is torch 2.10.1. Update torch" in done.stderr


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
    assert main(["doctor", "--no-canaries"]) == 1
    assert "PACKPASS_VERIFY = 'maybe'" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-canaries", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] is True
    assert {"section": "versions", "name": "torch"}.items() <= data["checks"][2].items()
    assert json.loads(diagnosis_json([Check("a", "b", "broken", "c")]))["ok"] is False
