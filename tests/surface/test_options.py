"""Options: where they come from, what is rejected, and in which words."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from packpass import _passes
from packpass._options import Options, from_environment, parse

NOTHING: dict[str, str] = {}


def test_defaults() -> None:
    options, rest = Options.from_dict(None, environ=NOTHING)
    assert rest == {}
    assert dataclasses.asdict(options) == {
        "fix_shifts": "auto",
        "eliminate_padding": False,
        "isolate": False,
        "symbolic_loops": True,
        "disable": (),
        "on_refusal": "ignore",
        "verify": False,
        "inner_backend": "inductor",
        "agreement": True,
        "agreement_timeout": 60.0,
        "bucket_bytes": 2**28,
        "collective_latency_us": None,
        "collective_bandwidth_gbs": None,
        "copy_bandwidth_gbs": None,
    }


def test_other_entries_are_inductor_s_and_the_caller_s_dict_stays_as_it_was() -> None:
    given: dict[str, Any] = {"packpass.verify": True, "max_autotune": True, "triton.cudagraphs": False}
    copy = dict(given)
    options, rest = Options.from_dict(given, environ=NOTHING)
    assert options.verify
    assert rest == {"max_autotune": True, "triton.cudagraphs": False}
    assert given == copy


def test_options_are_frozen_and_hashable() -> None:
    options = Options(disable=("pack_shifts",))
    assert hash(options) == hash(Options(disable=["pack_shifts"]))  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.verify = True  # type: ignore[misc]


def test_round_trip_through_the_dict() -> None:
    options = Options(fix_shifts="off", disable=("pack_shifts", "vectorize_segments"), verify=True)
    assert Options.from_dict(options.to_dict(), environ=NOTHING) == (options, {})


def test_disable_is_put_in_one_order() -> None:
    one = Options(disable=("fuse_all_to_all", "pack_shifts"))
    other = Options(disable=("pack_shifts", "fuse_all_to_all", "pack_shifts"))
    assert one == other
    assert one.disable == ("fuse_all_to_all", "pack_shifts")


BAD = [
    (
        {"packpass.fix_shift": "off"},
        ValueError,
        r"unknown option 'packpass.fix_shift' \(did you mean 'packpass.fix_shifts'\?\)",
    ),
    (
        {"packpass.nonsense": 1},
        ValueError,
        r"unknown option 'packpass.nonsense'; the packpass options are .*packpass.verify",
    ),
    ({"packpass.fix_shifts": "of"}, ValueError, r"packpass.fix_shifts = 'of': allowed are 'auto', 'declared', 'off'"),
    (
        {"packpass.fix_shifts": False},
        TypeError,
        r"packpass.fix_shifts = False: must be a string, got bool; allowed are",
    ),
    ({"packpass.verify": 1}, TypeError, r"packpass.verify = 1: must be True or False, got int"),
    ({"packpass.verify": "true"}, TypeError, r"packpass.verify = 'true': must be True or False, got str"),
    ({"packpass.symbolic_loops": None}, TypeError, r"packpass.symbolic_loops = None: must be True or False"),
    ({"packpass.on_refusal": "throw"}, ValueError, r"allowed are 'ignore', 'warn', 'raise'"),
    ({"packpass.inner_backend": "cudagraphs"}, ValueError, r"allowed are 'inductor', 'aot_eager', 'eager'"),
    (
        {"packpass.disable": "pack_shift"},
        ValueError,
        r"no pass is called 'pack_shift' \(did you mean 'pack_shifts'\?\)",
    ),
    ({"packpass.agreement_timeout": 0}, ValueError, r"packpass.agreement_timeout = 0: must be a number above 0"),
    ({"packpass.bucket_bytes": 1.5}, TypeError, r"must be a whole number of at least 0, got float"),
    ({"packpass.bucket_bytes": True}, TypeError, r"must be a whole number of at least 0, got bool"),
    ({"packpass.bucket_bytes": -1}, ValueError, r"packpass.bucket_bytes = -1: must be a whole number of at least 0"),
    ({"packpass.copy_bandwidth_gbs": 0}, ValueError, r"must be a number above 0 or None"),
    ({"packpass.collective_latency_us": float("nan")}, ValueError, r"must be a number of at least 0 or None"),
    ({"packpass.collective_bandwidth_gbs": "3"}, TypeError, r"must be a number above 0 or None, got str"),
    ({"packpass.disable": 3}, TypeError, r"packpass.disable = 3: must be a list of pass names, got int"),
    ({"packpass.disable": [3]}, TypeError, r"pass names are strings, got 3"),
]


@pytest.mark.parametrize(("given", "error", "words"), BAD)
def test_bad_options_are_named(given: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Options.from_dict(given, environ=NOTHING)


def test_options_must_be_a_dict() -> None:
    with pytest.raises(TypeError, match=r"options must be a dict or None, got list"):
        Options.from_dict(["packpass.verify"], environ=NOTHING)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Options)])
def test_unknown_option_error_names_every_option(field: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"packpass.{field}")):
        Options.from_dict({"packpass.zzz": 1}, environ=NOTHING)


def test_environment_gives_defaults_and_the_dict_wins() -> None:
    environ = {
        "PACKPASS_VERIFY": "on",
        "PACKPASS_FIX_SHIFTS": "off",
        "PACKPASS_DISABLE": "pack_shifts, fuse_all_to_all",
    }
    assert from_environment(environ) == {
        "verify": True,
        "fix_shifts": "off",
        "disable": ("fuse_all_to_all", "pack_shifts"),
    }
    options, _ = Options.from_dict({"packpass.fix_shifts": "declared"}, environ=environ)
    assert (options.verify, options.fix_shifts) == (True, "declared")


def test_the_process_environment_is_read_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKPASS_INNER_BACKEND", "eager")
    assert Options.from_dict()[0].inner_backend == "eager"
    monkeypatch.delenv("PACKPASS_INNER_BACKEND")
    assert Options.from_dict()[0].inner_backend == "inductor"


@pytest.mark.parametrize(("text", "value"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("Off", False)])
def test_booleans_as_text(text: str, value: bool) -> None:
    assert parse("verify", text, "PACKPASS_VERIFY") is value


def test_numbers_as_text() -> None:
    assert parse("bucket_bytes", "1024", "PACKPASS_BUCKET_BYTES") == 1024
    assert parse("collective_latency_us", "2e1", "PACKPASS_COLLECTIVE_LATENCY_US") == 20.0
    with pytest.raises(ValueError, match=r"PACKPASS_BUCKET_BYTES = '1.5': must be a whole number of at least 0"):
        Options.from_dict(environ={"PACKPASS_BUCKET_BYTES": "1.5"})


def test_bad_environment_names_the_variable() -> None:
    with pytest.raises(ValueError, match=r"PACKPASS_VERIFY = 'maybe': allowed are 1/true/on and 0/false/off"):
        Options.from_dict(environ={"PACKPASS_VERIFY": "maybe"})
    with pytest.raises(ValueError, match=r"PACKPASS_ON_REFUSAL = 'panic': allowed are"):
        Options.from_dict(environ={"PACKPASS_ON_REFUSAL": "panic"})


def test_empty_variables_count_as_unset() -> None:
    assert from_environment({"PACKPASS_VERIFY": "", "PACKPASS_DISABLE": " "}) == {}


def test_disable_knows_every_pass() -> None:
    every = _passes.names()
    assert Options(disable=every).disable == every
    assert {"vectorize_segments", "pack_shifts", "fuse_all_to_all", "fuse_boundary_exchange"} <= set(every)
