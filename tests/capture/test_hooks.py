"""The hook table: fits this torch, says so when it does not, and touches no other backend."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import config as dynamo_config
from torch._dynamo.current_scope_id import current_scope_id
from torch._dynamo.testing import EagerAndRecordGraphs

import packpass
from packpass import capture
from packpass._options import Options
from packpass.capture.frame import FrameState
from packpass.capture.hooks import Group, Hook, install_group, problem, switched_off, wrap
from packpass.capture.state import active
from packpass.engine import backend

from .support import boundaries, compiled, equal, hold, row

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {group.name: group for group in capture._groups(backend._Client())}
HOOKS = [(name, hook) for name, group in GROUPS.items() for hook in group.hooks]


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# === The table fits this torch ===============================================================================


def label(item: tuple[str, Hook]) -> str:
    owner = item[1].owner()
    return f"{owner.__name__.rpartition('.')[2]}.{item[1].attribute}"


@pytest.mark.parametrize("item", HOOKS, ids=label)
def test_every_target_is_as_expected_and_wrapped(item: tuple[str, Hook]) -> None:
    _, hook = item
    assert problem(hook) is None
    target = getattr(hook.owner(), hook.attribute)
    original = target.__packpass_original__
    assert not hasattr(original, "__packpass_original__"), "wrapped twice"
    assert target.__doc__ == original.__doc__


def test_no_target_is_listed_twice() -> None:
    targets = [(id(hook.owner()), hook.attribute) for _, hook in HOOKS]
    assert len(targets) == len(set(targets))


def test_states() -> None:
    states = {state.name: state for state in capture.hook_states()}
    assert list(states) == list(GROUPS) == [
        "gate", "symbolic-loops", "late-reads", "boundary-inputs", "list-inputs", "p2p",
    ]  # fmt: skip
    for state in states.values():
        assert (state.state, state.reason) == ("on", "")
        assert len(state.purpose) > 20
        assert capture.group_is_on(state.name)
    assert not capture.group_is_on("no such group")


def test_installing_again_changes_nothing() -> None:
    before = [getattr(hook.owner(), hook.attribute) for _, hook in HOOKS]
    capture.install(backend._Client())
    assert [getattr(hook.owner(), hook.attribute) for _, hook in HOOKS] == before


# === Installing a group ======================================================================================


class Target:
    def method(self, tx: Any, name: str) -> str:
        """Documented."""
        return f"original {tx} {name}"

    def other(self, tx: Any) -> str:
        return f"other {tx}"


def replaced(original: Callable[..., Any], self: Any, *args: Any) -> str:
    return "hooked " + original(self, *args)


def group(*hooks: Hook) -> Group:
    return Group("toy", "a group for this test", hooks)


@pytest.fixture
def target() -> type:
    return type("Target", (), {"method": Target.method, "other": Target.other})


@pytest.mark.parametrize(
    ("attribute", "parameters", "reason"),
    [
        ("gone", ("self",), "Target.gone is missing"),
        ("method", ("self", "tx", "key"), "Target.method takes .*'name'.*expected .*'key'"),
        ("method", ("self", "tx", "name", "more"), "Target.method takes"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_wrapped(
    target: Any, attribute: str, parameters: tuple[str, ...], reason: str
) -> None:
    good = Hook(lambda: target, "other", ("self", "tx"), replaced, gated=False)
    toy = group(good, Hook(lambda: target, attribute, parameters, replaced, gated=False))
    install_group(toy, frozenset())
    assert toy.state == "broken"
    assert re.search(reason, toy.reason)
    assert target().other(1) == "other 1"


def test_an_owner_that_is_gone_breaks_the_group() -> None:
    toy = group(Hook(lambda: torch._dynamo.no_such_module, "method", ("self",), replaced))
    install_group(toy, frozenset())
    assert toy.state == "broken"
    assert "no_such_module" in toy.reason


def test_a_real_target_that_goes_missing_or_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test of the real table, on targets as another torch might have them."""
    from torch._dynamo.output_graph import OutputGraph
    from torch._dynamo.side_effects import SideEffects

    hooks = {hook.attribute: hook for _, hook in HOOKS}
    with monkeypatch.context() as patch:
        patch.delattr(SideEffects, "load_cell")
        assert problem(hooks["load_cell"]) == "SideEffects.load_cell is missing"
    with monkeypatch.context() as patch:
        patch.setattr(OutputGraph, "compile_subgraph", lambda self, why: None)
        assert "compile_subgraph takes ('self', 'why')" in str(problem(hooks["compile_subgraph"]))
    assert problem(hooks["load_cell"]) is problem(hooks["compile_subgraph"]) is None


def test_instructions_that_work_otherwise_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase

    toy = Group("toy", "a group for this test", (), check=GROUPS["symbolic-loops"].check)
    install_group(toy, frozenset())
    assert toy.state == "on"
    for table, reason in ((None, "dispatch_table is missing"), ([None] * 256, "has no GET_ITER")):
        with monkeypatch.context() as patch:
            patch.setattr(InstructionTranslatorBase, "dispatch_table", table)
            install_group(toy, frozenset())
        assert toy.state == "broken"
        assert toy.reason.endswith(reason)


def test_a_switched_off_group_is_not_wrapped(target: Any) -> None:
    toy = group(Hook(lambda: target, "method", ("self",), replaced, gated=False))
    install_group(toy, frozenset({"toy"}))
    assert (toy.state, "PACKPASS_DISABLE_HOOKS" in toy.reason) == ("off", True)
    assert target().method(1, "a") == "original 1 a"


@pytest.mark.parametrize(
    ("text", "names"), [("", set()), ("gate", {"gate"}), (" gate , symbolic-loops,", {"gate", "symbolic-loops"})]
)
def test_switches(text: str, names: set[str]) -> None:
    assert switched_off([("PACKPASS_DISABLE_HOOKS", text)]) == names
    assert switched_off([]) == frozenset()


def test_a_gated_hook_calls_the_original_unseen(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wrap(target, "method", replaced)
    assert target().method(1, name="a") == "original 1 a"
    monkeypatch.setattr(active, "frame", FrameState(Options()))
    assert target().method(1, "a") == "hooked original 1 a"


# === On a torch that does not fit ============================================================================

BROKEN = ["missing", "signature", "gate"]
OFF = ["symbolic-loops off", "gate off"]


@functools.cache
def probed() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.capture.hook_probe", "fits", *BROKEN, *OFF],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("PROBE"))
    loaded: dict[str, Any] = json.loads(line.removeprefix("PROBE"))
    return loaded


@pytest.mark.slow
def test_the_probe_itself() -> None:
    fits = probed()["fits"]
    assert {name: state for name, (state, _) in fits["states"].items()} == dict.fromkeys(GROUPS, "on")
    assert fits["packpass"] == {"same": [True, True, True], "graphs": 1, "breaks": []}
    assert fits["stock"] != fits["packpass"]


@pytest.mark.parametrize(
    ("case", "broken", "reason"),
    [
        ("missing", ["symbolic-loops"], "SideEffects.load_cell is missing"),
        (
            "signature",
            ["symbolic-loops"],
            "compile_subgraph takes ('self', 'translator', 'args', 'kwargs'), expected ('self', 'tx', 'reason')",
        ),
        ("gate", list(GROUPS), "OutputGraph.__init__ takes"),
    ],
)
def test_a_broken_group_compiles_as_stock(case: str, broken: list[str], reason: str) -> None:
    found = probed()[case]
    for name, (state, why) in found["states"].items():
        assert state == ("broken" if name in broken else "on")
        assert (reason in why) == (name in broken)
    assert found["packpass"] == found["stock"] == found["stock again"]
    assert found["stock"]["same"] == [True, True, True]


@pytest.mark.parametrize(("case", "off"), [("symbolic-loops off", ["symbolic-loops"]), ("gate off", list(GROUPS))])
def test_hooks_switched_off_by_the_environment(case: str, off: list[str]) -> None:
    found = probed()[case]
    for name, (state, why) in found["states"].items():
        assert state == ("off" if name in off else "on")
        assert ("PACKPASS_DISABLE_HOOKS" in why) == (name in off)
    assert found["packpass"] == found["stock"] == found["stock again"]


# === Other backends in the same process ======================================================================


def loop(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].flip(1)
    return out


def stock_loop(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(cu.shape[0] - 1):
        out = out + i
    for c in cu:
        out = out * c
    return out.roll(1, 1)


def stock_graphs(call: Callable[[], Any], recorder: EagerAndRecordGraphs) -> list[str]:
    torch._dynamo.reset()
    recorder.graphs.clear()
    call()
    return [gm.print_readable(print_output=False) for gm in recorder.graphs]


def test_another_backend_compiles_while_packpass_traces() -> None:
    """Dynamo may run user code for a constant; a compile in there is no business of packpass."""
    recorder = EagerAndRecordGraphs()
    stock = torch.compile(stock_loop, backend=recorder)
    scalars: list[bool] = []

    @torch._dynamo.assume_constant_result
    def constant() -> float:
        scalars.append(dynamo_config.capture_scalar_outputs)
        return float(stock(row(), boundaries(3)).sum())

    def inside(x: Tensor, cu: Tensor) -> Tensor:
        out = x.clone()
        for s, e in zip(cu[:-1], cu[1:]):
            out[:, s:e] = x[:, s:e].flip(1) * constant()
        return out

    alone = stock_graphs(lambda: stock(row(), boundaries(3)), recorder)
    beside: list[Any] = []
    graphs = stock_graphs(lambda: beside.append(compiled(inside)(row(), boundaries(3))), recorder)
    assert graphs == alone
    assert scalars
    equal(inside(row(), boundaries(3)), beside[0])


def test_stock_backends_in_between() -> None:
    recorder = EagerAndRecordGraphs()

    def once() -> None:
        torch.compile(stock_loop, backend=recorder)(row(), boundaries(3))

    before = stock_graphs(once, recorder)
    for _ in range(2):
        hold(loop, compiled(loop), [3, 5])
        assert stock_graphs(once, recorder) == before
        assert active.frame is None
        assert active.regions == []
        assert current_scope_id() == 1


def test_the_backend_works_on_a_graph_of_ones_own() -> None:
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    run = packpass.backend(gm, [torch.ones(3)], options={"packpass.inner_backend": "eager"})
    assert torch.equal(run(torch.ones(3)), torch.full((3,), 2.0))

    def through_a_function(gm: Any, inputs: Any) -> Any:
        return packpass.backend(gm, inputs, options={"packpass.inner_backend": "eager"})

    equal(loop(row(), boundaries(3)), torch.compile(loop, backend=through_a_function)(row(), boundaries(3)))


@pytest.mark.parametrize("other", ["eager", "inductor"])
def test_two_threads_compile_at_once(other: str) -> None:
    start, failures = threading.Barrier(4, timeout=60), []

    def work(backend: Any, options: dict[str, Any] | None, fn: Callable[..., Any], sizes: tuple[int, ...]) -> None:
        try:
            call = torch.compile(lambda x, cu: fn(x, cu) + 0, backend=backend, options=options)
            start.wait()
            for docs in sizes:
                torch.testing.assert_close(call(row(), boundaries(docs)), fn(row(), boundaries(docs)))
        except BaseException as error:
            failures.append(error)

    ours = (packpass.backend, {"packpass.inner_backend": "eager"}, loop, (3, 5, 8, 2))
    theirs = (other, None, stock_loop, (3, 5) if other == "eager" else (3,))
    threads = [threading.Thread(target=work, args=args) for args in (ours, theirs, ours, theirs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert active.frame is None
