"""Capture: what a loop over documents looks like in the graph, which loops are caught, and which are refused."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.current_scope_id import current_scope_id

from packpass import markers
from packpass.capture import Mode
from packpass.decisions.records import collecting
from packpass.engine import backend
from packpass.reports.report import Report
from tests.stock import codes, traced

from .support import Recorder, boundaries, compiled, equal, graphs, hold, reported, row


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    torch._dynamo.reset()


# === The captured graph ======================================================================================


def flip_each(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].flip(1)
    return out


def captured(fn: Callable[..., Any], *args: Any) -> fx.GraphModule:
    """The graph that packpass got, markers and all."""
    recorder = Recorder()
    compiled(fn, backend=recorder)(*args)
    loops = [gm for gm in recorder.graphs if any(n.target in markers.MARKERS for n in gm.graph.nodes)]
    assert len(loops) == 1
    return loops[0]


def marked(gm: fx.GraphModule, *targets: Any) -> list[fx.Node]:
    return [n for n in gm.graph.nodes if n.target in targets]


def body(gm: fx.GraphModule, which: int) -> list[Any]:
    """Tensor ops between the markers of one traced iteration, without Dynamo's arithmetic on sizes."""
    begin, end = marked(gm, markers.LOOP_BEGIN)[which], marked(gm, markers.LOOP_END)[which]
    nodes = list(gm.graph.nodes)
    inside = nodes[nodes.index(begin) + 1 : nodes.index(end)]
    return [n.target for n in inside if n.op == "call_method" or isinstance(n.meta.get("example_value"), Tensor)]


def test_a_loop_is_written_down_twice() -> None:
    gm = captured(flip_each, row(), boundaries(3))
    begins, ends = marked(gm, markers.LOOP_BEGIN), marked(gm, markers.LOOP_END)
    assert [n.args[1:] for n in begins] == [n.args[1:] for n in ends]
    assert [n.args[2] for n in begins] == [0, 1]
    assert [n.args[0] for n in ends] == begins
    assert begins[0].args[0] is begins[1].args[0]
    assert isinstance(begins[0].args[0].meta["example_value"], torch.SymInt)
    assert "flip" in body(gm, 0)
    assert body(gm, 0) == body(gm, 1)


def test_the_number_of_documents_is_the_length_of_the_loop() -> None:
    for docs in (1, 3, 9):
        (length, _) = (n.args[0] for n in marked(captured(flip_each, row(), boundaries(docs)), markers.LOOP_BEGIN))
        value = length.meta["example_value"]
        assert value.node.hint == docs


def test_append_and_cat_become_one_list() -> None:
    def fn(x: Tensor, cu: Tensor) -> Tensor:
        parts = []
        for s, e in zip(cu[:-1], cu[1:]):
            parts.append(x[:, s:e] * 2)
        return torch.cat(parts, dim=-1)

    gm = captured(fn, row(), boundaries(4))
    (collect,) = marked(gm, markers.LIST_COLLECT)
    (cat,) = marked(gm, markers.RAGGED_CAT)
    assert cat.args == (collect, -1)
    assert collect.args[0] in list(gm.graph.nodes)
    assert [n.target for n in collect.args[:2]] == [collect.args[0].target] * 2
    assert collect.args[0] is not collect.args[1]


def test_split_by_lengths_and_looping_over_a_list_again() -> None:
    def fn(x: Tensor, cu: Tensor) -> Tensor:
        parts = [part.flip(1) for part in x[:, : int(cu[-1])].split(cu.diff().tolist(), dim=1)]
        return torch.cat([part * 2 for part in parts], 1)

    gm = captured(fn, row(), boundaries(4))
    assert len(marked(gm, markers.SPLIT_GET)) == len(marked(gm, markers.LIST_GET)) == 2
    assert len({n.args[1] for n in marked(gm, markers.LOOP_BEGIN)}) == 2


def test_skips_carry_their_sense() -> None:
    def skip(x: Tensor, cu: Tensor) -> Tensor:
        out = x.clone()
        for s, e in zip(cu[:-1], cu[1:]):
            if e == s:
                continue
            out[:, s:e] = 0
        return out

    def unless(x: Tensor, cu: Tensor) -> Tensor:
        out = x.clone()
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            if e - s > 0:
                out[:, s:e] = 0
        return out

    for fn, op, when in ((skip, markers.LOOP_SKIP[1], True), (unless, markers.LOOP_SKIP[0], False)):
        skips = marked(captured(fn, row(), boundaries(4)), *markers.LOOP_SKIP)
        assert [n.target for n in skips] == [op, op]
        assert [n.args[1] for n in skips] == [when, when]
        assert [n.args[3] for n in skips] == [0, 1]


def test_roll_is_shadowed_only_where_a_size_is_unknown() -> None:
    def fn(x: Tensor, cu: Tensor) -> Tensor:
        out = torch.roll(x, 1, 1)
        for s, e in zip(cu[:-1], cu[1:]):
            out[:, s:e] = torch.roll(x[:, s:e], -1, 1)
        return out.roll(1, 1)

    gm = captured(fn, row(), boundaries(4))
    assert len(marked(gm, markers.ROLL)) == 2
    assert sum(n.target in (torch.roll, "roll") for n in gm.graph.nodes) == 2


def test_torch_check_in_a_loop_is_the_users_own() -> None:
    def fn(x: Tensor, cu: Tensor) -> Tensor:
        out = x.clone()
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            torch._check(e - s < 4)
            out[:, s:e] = 0
        return out

    checks = marked(captured(fn, row(), boundaries(4)), markers.LOOP_CHECK)
    assert len(checks) == 2
    assert all("test_capture.py" in n.args[1] for n in checks)


# === One graph for every number of documents =================================================================


class Batch(NamedTuple):
    cu_seqlens: Tensor


@dataclasses.dataclass
class Packed:
    cu_seqlens: Tensor
    name: str = "thd"


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cu: Any = None

    def forward(self, x: Tensor) -> Tensor:
        out = x.clone()
        for s, e in zip(self.cu[:-1], self.cu[1:]):
            out[:, s:e] = x[:, s:e].flip(1)
        return out


CONTAINERS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "dataclass": (Packed, lambda p: p.cu_seqlens),
    "dict": (lambda cu: {"cu_seqlens": cu, "max_seqlen": 4}, lambda p: p["cu_seqlens"]),
    "nested dict": (lambda cu: {"a": [cu, None]}, lambda p: p["a"][0]),
    "NamedTuple": (Batch, lambda p: p.cu_seqlens),
    "namespace": (lambda cu: SimpleNamespace(cu_seqlens=cu), lambda p: p.cu_seqlens),
    "int32": (lambda cu: cu.int(), lambda p: p),
}


def test_one_graph_for_every_number_of_documents() -> None:
    fn = compiled(flip_each)
    hold(flip_each, fn, range(1, 51))
    assert graphs() == 1


@pytest.mark.parametrize("first", [1, 2, 50])
def test_whichever_number_comes_first(first: int) -> None:
    fn = compiled(flip_each)
    hold(flip_each, fn, [first, 3, 1, 2, 17])
    assert graphs() == 1


@pytest.mark.parametrize("name", list(CONTAINERS))
def test_boundaries_in_containers(name: str) -> None:
    wrap, unwrap = CONTAINERS[name]

    def fn(x: Tensor, packed: Any) -> Tensor:
        cu = unwrap(packed)
        out = x.clone()
        for i in range(cu.shape[0] - 1):
            out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].flip(1)
        return out

    call = compiled(fn)
    hold(fn, call, [3, 7, 1, 20], wrap=wrap)
    assert graphs() == 1


def test_boundaries_as_a_module_attribute() -> None:
    module = Holder()
    call = compiled(module)
    for docs in (3, 7, 1, 20):
        module.cu = boundaries(docs)
        equal(module.forward(row()), call(row()))
    assert graphs() == 1


class Model(nn.Module):
    def one(self, x: Tensor, s: Any, e: Any) -> Tensor:
        return x[:, s:e].flip(1)

    def loop(self, x: Tensor, cu: Tensor) -> Tensor:
        out = x.clone()
        for s, e in zip(cu[:-1], cu[1:]):
            out[:, s:e] = self.one(x, s, e)
        return out

    def forward(self, x: Tensor, cu: Tensor) -> Tensor:
        return self.loop(self.loop(x, cu) * 2, cu)


def helper(x: Tensor, cu: Tensor) -> Tensor:
    return flip_each(x * 2, cu) + 1


def closure(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()

    def each() -> None:
        for i in range(cu.numel() - 1):
            out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].flip(1)

    each()
    return out


def closure_called_in_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()

    def one(s: Any, e: Any) -> None:
        out[:, s:e] = x[:, s:e].flip(1)

    for s, e in zip(cu[:-1], cu[1:]):
        one(s, e)
    return out


def comprehension(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[:, s:e].flip(1) for s, e in zip(cu.int()[:-1], cu.int()[1:])], 1)


def comprehension_over_a_list(x: Tensor, cu: Tensor) -> Tensor:
    ends = cu.tolist()
    return torch.cat([x[:, s:e].flip(1) for s, e in zip(ends, ends[1:], strict=False)], 1)


def mapped(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat(list(map(lambda s, e: x[:, s:e].flip(1), cu[:-1], cu[1:])), 1)


def list_indexed_by_number(x: Tensor, cu: Tensor) -> Tensor:
    out, ends = x.clone(), cu.tolist()
    for i in range(1, len(ends)):
        out[:, ends[i - 1] : ends[i]] = x[:, ends[i - 1] : ends[i]].flip(1)
    return out


def enumerated(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i, s in enumerate(cu[:-1]):
        out[:, s : cu[i + 1]] = x[:, s : cu[i + 1]].flip(1)
    return out


PLACES = [
    helper,
    closure,
    closure_called_in_the_loop,
    comprehension,
    mapped,
    list_indexed_by_number,
    enumerated,
]


@pytest.mark.parametrize("fn", PLACES, ids=lambda f: f.__name__)
def test_places(fn: Callable[..., Any]) -> None:
    call = compiled(fn, fullgraph=True)
    hold(fn, call, [3, 7, 1, 20])
    assert graphs() == 1


def test_methods() -> None:
    model = Model()
    call = compiled(model)
    hold(model.forward, call, [3, 7, 1, 20])
    assert graphs() == 1


# === Refusals ================================================================================================


def sequence_use(x: Tensor, cu: Tensor) -> Tensor:
    ends = cu.tolist()
    out = x.clone()
    for s, e in zip(ends[:-1], ends[1:]):
        out[:, s:e] = x[:, s:e].flip(1)
    return out + ends[2] if x.shape[0] == 2 else out


def element_before_the_first(x: Tensor, cu: Tensor) -> Tensor:
    ends = cu.tolist()[1:]
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, : ends[i - 1]] += 1  # the last one, for the first document
    return out


def element_of_a_range_before_the_first(x: Tensor, cu: Tensor) -> Tensor:
    out, numbers = x.clone(), range(len(cu) - 1)
    for i in numbers:
        j = numbers[i - 1]
        out[:, cu[j] : cu[j + 1]] += i
    return out


def sequence_that_is_kept(x: Tensor, cu: Tensor) -> Any:
    kept = SimpleNamespace(ends=tuple(cu.tolist()))
    out = x.clone()
    for s, e in zip(kept.ends[:-1], kept.ends[1:]):
        out[:, s:e] = x[:, s:e].flip(1)
    return out, [kept.ends, range(cu.shape[0] - 1)]


def iterator_use(x: Tensor, cu: Tensor) -> Tensor:
    out, ends = x.clone(), iter(cu)
    next(ends)
    for e in ends:
        out[:, :e] += 1
    return out


def iterator_used_up(x: Tensor, cu: Tensor) -> Tensor:
    out, pairs = x.clone(), zip(cu[:-1], cu[1:])
    for s, e in pairs:
        out[:, s:e] += 1
    for s, e in pairs:
        out[:, s:e] *= 2
    return out


def nested_loops(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        for j in range(len(cu) - 1):
            out[:, cu[i] : cu[j]] += 1
    return out


def early_exit(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = 0
        if out.shape[0] == 2:
            break
    return out


def early_return(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = 0
        return out
    return x


def unequal_lengths(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for (s, e), k in zip(zip(cu[:-1], cu[1:]), (1, 2, 3)):
        out[:, s:e] *= k
    return out


def unequal_tensors(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu, cu[1:]):
        out[:, s:e] *= 2
    return out


def list_use(x: Tensor, cu: Tensor) -> Any:
    parts = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(x[:, s:e])
    return parts[1], len(parts)


def list_without_its_first(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(x[:, s:e])
    return torch.cat([x[:, :1], *parts[1:]], 1)


def list_append(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append((x[:, s:e], ["document"]))
    return torch.cat([part for part, _ in parts], 1)


def carried_state(x: Tensor, cu: Tensor) -> Tensor:
    out, k = x.clone(), 0
    for s, e in zip(cu[:-1], cu[1:]):
        k = (k + 1) % 3
        out[:, s:e] *= 10 if k > 1 else 1
    return out


def carried_in_a_cell(x: Tensor, cu: Tensor) -> Tensor:
    out, k = x.clone(), 0

    def bump() -> int:
        nonlocal k
        k = 2 * k + 1
        return k

    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] *= 10 if bump() > 2 else 1
    return out


def leaked_local(x: Tensor, cu: Tensor) -> Any:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        part = x[:, s:e].flip(1)
        out[:, s:e] = part
    return out, part


def leaked_through_locals(x: Tensor, cu: Tensor) -> Any:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        part = x[:, s:e].flip(1)
        out[:, s:e] = part
    return out, locals()["part"]


def try_around(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    try:
        for s, e in zip(cu[:-1], cu[1:]):
            out[:, s:e] = x[:, s:e].flip(1)
    except RuntimeError:
        return x
    return out


def try_inside(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu)):
        try:
            out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].flip(1)
        except IndexError:
            out[:, 0] += 1
    return out


def suppress_inside(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu)):
        with contextlib.suppress(IndexError):
            out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].flip(1)
    return out


def outer_mutation(x: Tensor, cu: Tensor) -> Tensor:
    out, seen = x.clone(), set[str]()
    for s, e in zip(cu[:-1], cu[1:]):
        seen.add("second" if "first" in seen else "first")
        out[:, s:e] *= 10 if len(seen) > 1 else 1
    return out


class Doubling:
    def __init__(self) -> None:
        self._value: Any = 0.0

    @property
    def value(self) -> Any:
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._value = value * 2


def carried_through_a_property(x: Tensor, cu: Tensor) -> Any:
    """What is stored is twice the value (torch 2.11 does not see that, with or without packpass)."""
    state = Doubling()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        state.value = state.value + x[:, s:e].sum()
    return state.value


def outer_list_of_numbers(x: Tensor, cu: Tensor) -> Tensor:
    out, factors = x.clone(), [10, 1, 1]
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] *= factors.pop() if factors else 1
    return out


def outer_iterator(x: Tensor, cu: Tensor) -> Tensor:
    out, factors = x.clone(), itertools.cycle([1, 1, 10])
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] *= next(factors)
    return out


def outer_generator(x: Tensor, cu: Tensor) -> Tensor:
    def factors() -> Iterator[int]:
        for k in range(100):
            yield 10 if k > 3 else 1

    out, numbers = x.clone(), factors()
    next(numbers)
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] *= numbers.send(None)  # type: ignore[attr-defined]
    return out


def breaking_loop(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        torch._dynamo.graph_break()
        out[:, s:e] = 0
    return out


def pieces_counted(x: Tensor, cu: Tensor) -> Tensor:
    """How many pieces chunk makes depends on the length."""
    out = torch.zeros_like(x)
    for i in range(cu.shape[0] - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]] * len(x[:, cu[i] : cu[i + 1]].chunk(3, 1))
    return out


def graph_break(x: Tensor, cu: Tensor) -> Tensor:
    return breaking_loop(x, cu) + 1


def body_not_traceable(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] += torch.unique_consecutive(x.detach()[0, s:e]).sum()
    return out


def truths_and_numbers(x: Tensor, cu: Tensor) -> Tensor:
    """Eager computes with a tensor of 32 bits here, which does not make 64 bits of truth values."""
    return torch.cat([(x[:, s:e] > 0) * max(e - s, 3) for s, e in zip(cu.int()[:-1], cu.int()[1:])], 1)


def lengths_in_a_matrix(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for e, s in torch.stack([cu[:-1], cu[1:]], 1).flip(1).tolist():
        out[:, s:e] = x[:, s:e] * 2
    return out


def lengths_found_in_the_row(x: Tensor, cu: Tensor) -> Tensor:
    """As many slots of each row as hold something positive."""
    out, lengths = x.clone(), (x > 0).sum(1)
    for i in range(x.shape[0]):
        out[i, : lengths[i]] = x[i, : lengths[i]].flip(0)
    return out


def lengths_in_a_comprehension(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([part[: int(n)] for part, n in zip(x, (x > 0).sum(1))])


def entries_that_change(x: Tensor, cu: Tensor) -> Tensor:
    one, parts = torch.ones_like(x[:, :1]), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x[:, s:e])
        parts.append(one)
    one.zero_()
    return torch.cat(parts, 1)


def while_by_twos(x: Tensor, cu: Tensor) -> Tensor:
    out, i = x.clone(), 0
    while i < len(cu) - 1:
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]] * 2
        i += 2
    return out


def while_over_slots(x: Tensor, cu: Tensor) -> Tensor:
    out, i, at = x.clone(), 0, int(cu[0])
    while at < int(cu[-1]):
        out[:, at : cu[i + 1]] = x[:, at : cu[i + 1]] * 2
        at, i = int(cu[i + 1]), i + 1
    return out


REFUSED: dict[str, tuple[Callable[..., Any], ...]] = {
    "aliasing": (entries_that_change,),
    "index-as-number": (truths_and_numbers,),
    "sequence-use": (
        *(sequence_use, sequence_that_is_kept),
        *(element_before_the_first, element_of_a_range_before_the_first),
    ),
    "iterator-use": (iterator_use, iterator_used_up),
    "nested-loops": (nested_loops,),
    "early-exit": (early_exit, early_return),
    "unequal-lengths": (unequal_lengths,),
    "lengths-unknown": (lengths_in_a_matrix,),
    "list-use": (list_use, list_without_its_first),
    "list-append": (list_append,),
    "carried-state": (carried_state, carried_in_a_cell, carried_through_a_property),
    "leaked-local": (leaked_local, leaked_through_locals),
    "try-block": (try_around, try_inside, suppress_inside),
    "outer-mutation": (outer_mutation, outer_list_of_numbers),
    "outer-iterator": (outer_iterator, outer_generator),
    "length-branch": (pieces_counted,),
    "graph-break": (graph_break,),
    "while-loop": (while_by_twos, while_over_slots),
    "body-not-traceable": (body_not_traceable, breaking_loop),
}
CASES = [(code, fn) for code, fns in REFUSED.items() for fn in fns]


@pytest.mark.parametrize("case", CASES, ids=[fn.__name__ for _, fn in CASES])
def test_refused_and_equal_to_eager(case: tuple[str, Callable[..., Any]]) -> None:
    code, fn = case
    report = reported(fn, row(), boundaries(4))
    found = [r for r in report.refusals if r.code in codes(code)]
    assert {r.rule for r in found} == {"capture"}
    refusal = found[0]
    assert refusal.location.rpartition(":")[0].endswith("test_capture.py")
    assert not [r for r in report.rewrites if r.rule == "vectorize_segments"]
    equal(fn(row(), boundaries(4)), report.result)
    assert current_scope_id() == 1
    # what differs only from the third document on must not be missed either
    hold(fn, compiled(fn), [5, 3, 2], least=1)


@pytest.mark.parametrize("fn", [lengths_found_in_the_row, lengths_in_a_comprehension])
def test_lengths_found_in_the_rows_of_a_batch(fn: Callable[..., Any]) -> None:
    """What is counted in a row says how long its document is."""
    report = reported(fn, row(), boundaries(4))
    assert [r.rule for r in report.rewrites] == ["vectorize_segments"] and not report.refusals
    equal(fn(row(), boundaries(4)), report.result)
    hold(fn, compiled(fn), [5, 3, 2], least=1)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_an_error_of_ours_does_not_fail_the_model(monkeypatch: pytest.MonkeyPatch, fullgraph: bool) -> None:
    """Where a pass fails, the frame compiles as under stock torch.compile."""
    right = backend.run_passes

    def wrong(gm: fx.GraphModule, settings: Any, frame: Any) -> Any:
        if frame.mode is Mode.SYMBOLIC:
            raise ZeroDivisionError("a bug in a pass")
        return right(gm, settings, frame)

    monkeypatch.setattr(backend, "run_passes", wrong)
    if fullgraph and not traced(flip_each, row(), boundaries(4)):
        pytest.skip("torch.compile itself cannot trace the loop here")
    report = Report()
    call = compiled(flip_each, fullgraph=fullgraph)
    with collecting(report):
        equal(flip_each(row(), boundaries(4)), call(row(), boundaries(4)))
    (refusal,) = report.refusals
    assert refusal.code == "frame-not-compiled"
    assert "a bug in a pass" in refusal.reason or "BackendCompilerFailed" in refusal.reason
    assert "test_capture.py" in refusal.location


def test_a_loop_under_vmap() -> None:
    """The graph must be left in a state that Dynamo can clear."""

    def fn(x: Tensor, cu: Tensor) -> Tensor:
        return torch.vmap(lambda part: flip_each(part[None], cu)[0])(x)

    report = reported(fn, row(), boundaries(4))
    (refusal,) = report.refusals
    assert refusal.code in codes("body-not-traceable")
    hold(fn, compiled(fn), [5, 3])


def test_a_refusal_at_the_end_of_the_loop_leaves_nothing_behind() -> None:
    """Dynamo takes a scope that stays open for a higher-order operator and refuses any change of outer objects."""

    def fn(x: Tensor, cu: Tensor) -> Tensor:
        out, k = x.clone(), torch.zeros(2, 1)
        for s, e in zip(cu[:-1], cu[1:]):
            k = k + 1
            out[:, s:e] = x[:, s:e] * k
        return out

    for _ in range(2):
        report = reported(fn, row(), boundaries(4), on_refusal="ignore")
        assert [r.code for r in report.refusals] == ["carried-state"]
    if traced(fn, row(), boundaries(4)):
        equal(fn(row(), boundaries(4)), compiled(fn, fullgraph=True)(row(), boundaries(4)))


def test_every_code_of_capture_has_a_program() -> None:
    used = set()
    for path in (pathlib.Path(__file__).parents[2] / "packpass" / "capture").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("refuse", "note"):
                used |= {a.value for a in node.args[:1] if isinstance(a, ast.Constant)}
    # test_p2p, test_degraded, test_own_errors, test_number_lists
    elsewhere = {"message-wait", "hooks-dead", "internal-error", "outer-tensor-write"}
    assert used == {*REFUSED, "frame-not-compiled", *elsewhere}


# === Frames without loops over documents =====================================================================


def plain(x: Tensor, cu: Tensor) -> Tensor:
    return torch.roll(x, 1, 1) * cu.sum()


def layers(x: Tensor, cu: Tensor) -> Tensor:
    for k in range(12):
        x = x * k + cu[k % 2]
    return x


def rows(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([part.cumsum(0) for part in x]) + len(cu)


@pytest.mark.parametrize("fn", [plain, layers, rows], ids=lambda f: f.__name__)
def test_frames_without_loops_are_traced_once(fn: Callable[..., Any]) -> None:
    recorder = Recorder()
    call = compiled(fn, backend=recorder)
    hold(fn, call, [4, 6, 30])
    assert recorder.graphs
    assert set(recorder.restarts) == {0}
    assert set(recorder.modes) == {Mode.PROBE}
    assert set(recorder.scalars) == {False}


def test_a_captured_loop_leaves_the_settings_alone() -> None:
    recorder = Recorder()
    hold(flip_each, compiled(flip_each, backend=recorder), [4, 6])
    assert recorder.modes == [Mode.SYMBOLIC]
    assert recorder.restarts[0] >= 1
    config: Any = torch._dynamo.config
    assert config.capture_scalar_outputs is False


def test_symbolic_loops_off_is_unrolled_or_stock() -> None:
    recorder = Recorder()
    call = compiled(flip_each, backend=recorder, symbolic_loops=False)
    hold(flip_each, call, [4, 6])
    assert not [n for gm in recorder.graphs for n in gm.graph.nodes if n.target in markers.MARKERS]
