"""A hook group that is off, dead or does not fit this torch: canaries fail, and reports say what a model lost."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass import capture
from packpass.capture import HookState
from packpass.capture.state import TracingRefusedError
from packpass.cli.canaries import CANARIES
from packpass.engine import degraded as degraded
from packpass.engine import versions
from packpass.engine.missing import CONSEQUENCES, warn_about

ROOT = Path(__file__).resolve().parents[2]
EAGER = {"packpass.inner_backend": "eager"}
GROUPS = ("gate", "symbolic-loops", "late-reads", "boundary-inputs", "list-inputs", "p2p")
LOOPS = [c.name for c in CANARIES if "symbolic-loops" in (*c.proves, *c.needs)]


@functools.cache
def probed() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.capture.degraded_probe"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("PROBE"))
    loaded: dict[str, Any] = json.loads(line.removeprefix("PROBE"))
    assert not any("error" in case for case in loaded.values()), loaded
    return loaded


def failed(case: str) -> set[str]:
    """The canaries that failed, and that left the results right."""
    outcomes = probed()[case]["canaries"].values()
    assert all(outcome["right"] for outcome in outcomes)
    return {outcome["name"] for outcome in outcomes if outcome["state"] == "failed"}


# === Canaries ================================================================================================


def test_every_group_has_a_canary_and_a_consequence() -> None:
    assert {group for canary in CANARIES for group in canary.proves} == set(GROUPS) == set(CONSEQUENCES)


@pytest.mark.slow
def test_every_canary_can_fail() -> None:
    names = {canary.name for canary in CANARIES}
    assert failed("off gate") == failed("dead all") == names


@pytest.mark.slow  # `make test-matrix` runs the canaries, and those that fail make it fail
@pytest.mark.parametrize("how", ["off", "dead"])
@pytest.mark.parametrize(
    ("group", "canaries"),
    [
        ("symbolic-loops", LOOPS),
        ("late-reads", ["late read in a backward"]),
        ("boundary-inputs", ["shift, unread boundaries"]),
        ("p2p", ["messages in a loop"]),
        ("list-inputs", ["documents in lists"]),
    ],
)
def test_canaries_of_a_group_fail_without_it_and_the_others_do_not(how: str, group: str, canaries: list[str]) -> None:
    case = probed()[f"{how} {group}"]
    assert case["states"] == {name: "off" if (how, name) == ("off", group) else "on" for name in GROUPS}
    assert failed(f"{how} {group}") == set(canaries)
    assert len(case["canaries"]) > len(canaries)


def test_a_group_that_does_not_fit_warns_once_and_models_run() -> None:
    case = probed()["misfit symbolic-loops"]
    assert case["states"] == {name: "broken" if name == "symbolic-loops" else "on" for name in GROUPS}
    assert failed("misfit symbolic-loops") == set(LOOPS)
    (warning,) = case["warnings"]
    assert "compile_subgraph takes" in warning
    assert CONSEQUENCES["symbolic-loops"] in warning
    assert "python -m packpass doctor" in warning
    assert all(not other["warnings"] for name, other in probed().items() if not name.startswith("misfit"))


def test_one_warning_for_all_groups_and_only_for_the_cause() -> None:
    groups = [HookState(name, "", "broken", "gone") for name in ("symbolic-loops", "p2p")]
    with pytest.warns(packpass.CompatibilityWarning) as said:
        warn_about(groups)
    (both,) = said
    assert all(CONSEQUENCES[group.name] in str(both.message) for group in groups)
    with pytest.warns(packpass.CompatibilityWarning) as said:
        warn_about([HookState("gate", "", "broken", "gone"), *groups])
    (cause,) = said
    assert CONSEQUENCES["gate"] in str(cause.message)
    assert "p2p" not in str(cause.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about([HookState("p2p", "", "off", "by the user"), HookState("gate", "", "on")])


# === Refusals at run time ====================================================================================


def only(case: str, program: str) -> tuple[str, str, str]:
    """Code, location and reason of the one refusal; nothing was rewritten, and nothing changed."""
    refusals, rewrites, same = probed()[case][program]
    assert (len(refusals), rewrites, same) == (1, 0, True)
    rule, code, location, reason = refusals[0]
    assert rule == "capture"
    return code, location, reason


@pytest.mark.parametrize("case", ["off symbolic-loops", "misfit symbolic-loops"])
@pytest.mark.parametrize(
    ("program", "line"), [("loop", "cu[i].item()"), ("listed", "cu.tolist()"), ("helper", "cu[i].item()")]
)
def test_a_loop_without_its_group_is_refused_where_tracing_stopped(case: str, program: str, line: str) -> None:
    code, location, reason = only(case, program)
    assert code == "hooks-off"
    file, number = location.rsplit(":", 1)
    assert line in Path(ROOT, file).read_text().splitlines()[int(number) - 1]
    assert "boundaries cu" in reason
    assert "'symbolic-loops'" in reason
    assert ("PACKPASS_DISABLE_HOOKS" if "off" in case else "compile_subgraph takes") in reason


def test_a_loop_whose_hooks_are_dead_is_refused() -> None:
    code, _, reason = only("dead symbolic-loops", "loop")
    assert code == "hooks-dead"
    assert "un `python -m packpass doctor`" in reason


@pytest.mark.parametrize(("how", "code"), [("off", "hooks-off"), ("dead", "hooks-dead")])
def test_boundaries_that_do_not_reach_the_graph_are_refused(how: str, code: str) -> None:
    found, location, reason = only(f"{how} boundary-inputs", "shift")
    assert found == code
    assert location.startswith("tests/capture/degraded_probe.py:")
    assert "cu_seqlens did not reach the graph" in reason
    assert "packpass.packed" in reason


def test_messages_and_late_reads_name_their_group() -> None:
    for group, canary in (("p2p", "messages in a loop"), ("late-reads", "late read in a backward")):
        assert "[hooks-off]" in probed()[f"off {group}"]["canaries"][canary]["detail"]


@pytest.mark.parametrize("program", ["loop", "listed", "helper", "shift", "layers"])
def test_without_the_gate_every_report_says_so(program: str) -> None:
    assert only("off gate", program)[0] == "hooks-off"
    assert only("dead all", program)[0] in ("frame-not-seen", "no-graph")


@pytest.mark.parametrize("group", GROUPS[1:])
def test_models_without_documents_have_nothing_to_refuse(group: str) -> None:
    for how in ("off", "dead"):
        assert probed()[f"{how} {group}"]["layers"] == [[], 0, True]


# === In this process, where everything is on =================================================================


def shift(input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    labels = torch.roll(input_ids, -1, dims=-1)
    labels[..., -1] = -100
    return labels


def test_refusals_follow_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    group = next(group for group in capture.GROUPS if group.name == "boundary-inputs")
    monkeypatch.setattr("packpass.capture.inputs._would_use", lambda *args: False)
    args = (torch.arange(12)[None], torch.tensor([0, 3, 7, 12]))
    assert group.state == "on"
    with pytest.raises(TracingRefusedError, match="hooks-dead"):
        packpass.compile(shift, options={**EAGER, "packpass.on_refusal": "raise"})(*args)
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="hooks-dead"):
        packpass.compile(shift, options={**EAGER, "packpass.on_refusal": "warn"})(*args)
    torch._dynamo.reset()
    report = packpass.explain(shift, options={**EAGER, "packpass.fix_shifts": "declared"})(*args)
    assert report.refusals == []


def test_a_backend_inside_another_is_told() -> None:
    def other(gm: Any, inputs: Any) -> Any:
        return packpass.backend(gm, inputs, options=EAGER)

    torch._dynamo.reset()
    report = packpass.Report()
    from packpass.decisions.records import collecting

    with collecting(report):
        torch.compile(shift, backend=other)(torch.arange(12)[None], torch.tensor([0, 3, 7, 12]))
        gm = torch.fx.symbolic_trace(lambda x: x + 1)
        packpass.backend(gm, [torch.ones(1)], options=EAGER)  # a graph of one's own has no frame
    assert [refusal.code for refusal in report.refusals] == ["frame-not-seen"]


def test_what_goes_wrong_while_looking_does_not_fail_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("no idea")

    monkeypatch.setattr(degraded, "_lost", fail)
    monkeypatch.setattr(degraded, "_not_in_graph", fail)

    def breaks(x: Tensor) -> Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    report = packpass.explain(breaks, options=EAGER)(torch.ones(2))
    assert report.result.tolist() == [4.0, 4.0]


def test_an_untested_torch_warns_once_and_when_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    monkeypatch.setattr(versions, "_warned", False)
    torch._dynamo.reset()
    with pytest.warns(packpass.CompatibilityWarning, match="this is torch 2.99.0.*python -m packpass doctor") as said:
        packpass.compile(lambda x: x + 1, options=EAGER)(torch.ones(1))
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", packpass.CompatibilityWarning)
        packpass.compile(lambda x: x + 2, options=EAGER)(torch.ones(1))
