"""What a first call need not do: remember fake tensors that nobody meets again, and keep what it has compiled."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, fx
from torch._inductor.utils import fresh_cache

import packpass
from packpass._compat import fake_mode_of, nothing_is_known, sizes_of_nobody, statically_known_true, without_fake_cache
from packpass.capture import fakes
from packpass.engine.copies import copy_graph
from packpass.semantics import call_of, example
from packpass.semantics.effects import effects_of, mutated_after, written_inputs
from tests.capture.support import Recorder, compiled, no_rule


def flipped(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i].item(), cu[i + 1].item()
        out[s:e] = x[s:e].flip(0)
    return out


def shuffled(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = no_rule(x[cu[i] : cu[i + 1]], 0)
    return out


def without_a_loop(x: Tensor, cu: Tensor) -> Tensor:
    return x.exp() + cu.sum()


def arguments() -> tuple[Tensor, Tensor]:
    return torch.randn(9), torch.tensor([0, 4, 9])


def recorded(fn: Callable[..., Tensor]) -> fx.GraphModule:
    """The graph as it was captured, the last if there are several."""
    backend = Recorder()
    x, cu = arguments()
    assert torch.equal(compiled(fn, backend=backend)(x, cu), fn(x, cu))
    return backend.graphs[-1]


def test_fake_tensors_are_remembered_but_for_those_of_documents() -> None:
    forgotten: list[bool] = []

    def noted(mode: object) -> contextlib.AbstractContextManager[None]:
        forgotten.append(mode is not None)
        return without_fake_cache(mode)

    with mock.patch.object(fakes, "without_fake_cache", noted):
        recorded(without_a_loop)
        assert not forgotten
        for fn in (flipped, shuffled):
            modes = {fake_mode_of(example(node)) for node in recorded(fn).graph.nodes} - {None}
            assert True in forgotten
            assert not forgotten[0]  # ``x.clone()``
            assert all(mode.cache_enabled for mode in modes)
            forgotten.clear()


@pytest.mark.parametrize("fn", [flipped, without_a_loop])
def test_nothing_of_a_graph_outlives_what_was_compiled(fn: Callable[..., Tensor]) -> None:
    def nodes() -> int:
        torch._dynamo.reset()
        for _ in range(3):  # what guards in C++ refer to is garbage only when a collection has freed the guards
            gc.collect()
        return sum(type(thing) is fx.Node for thing in gc.get_objects())

    before = nodes()
    for _ in range(2):
        compiled(fn)(*arguments())
    assert nodes() <= before


def test_copies_compute_the_same_and_are_apart() -> None:
    def traced(x: Tensor) -> Tensor:
        return x.sin() + 1

    x = torch.randn(3)
    for gm in (fx.symbolic_trace(traced), recorded(without_a_loop)):
        given = (x,) if len(gm.graph.find_nodes(op="placeholder")) == 1 else arguments()
        copy = copy_graph(gm)
        want = gm(*given)
        for node in list(gm.graph.nodes):
            if node.op == "output":
                node.args = ((node.args[0],),)
        gm.recompile()
        assert isinstance(gm(*given), tuple)
        (got,), (wanted,) = (value if isinstance(value, tuple) else (value,) for value in (copy(*given), want))
        assert torch.equal(got, wanted)


def test_what_is_known_of_a_node_follows_its_changes() -> None:
    graph = fx.Graph()
    x, y = (graph.placeholder(name) for name in "xy")
    for node in (x, y):
        node.meta["example_value"] = torch.zeros(3)
    added = graph.call_method("add_", (x, 1))
    added.meta["example_value"] = torch.zeros(3)
    graph.output(added)
    assert written_inputs(added) == effects_of(added).writes == (x,)
    assert mutated_after(graph, x, added) and not mutated_after(graph, y, added)
    added.args = (y, 1)
    assert written_inputs(added) == effects_of(added).writes == (y,)
    assert mutated_after(graph, y, added) and not mutated_after(graph, x, added)
    added.target = "add"
    assert written_inputs(added) == () and effects_of(added).pure
    call = call_of(added)
    assert call is not None and call.op == "add" and not call.in_place


def test_a_report_is_as_before() -> None:
    torch._dynamo.reset()
    report = packpass.explain(flipped, options={"packpass.inner_backend": "eager"})(*arguments())
    assert [rewrite.rule for rewrite in report.rewrites] == ["vectorize_segments"]
    assert not report.refusals


def fresh(mode: Any) -> Any:
    with mode.shape_env.ignore_fresh_unbacked_symbols():
        return mode.shape_env.create_unbacked_symint()


def test_of_a_number_of_its_own_nothing_is_known_until_something_is() -> None:
    with sizes_of_nobody() as (mode, size):
        start, end, row = fresh(mode), fresh(mode), size(0)
        assert nothing_is_known(start)
        assert nothing_is_known(end)
        assert not any(map(nothing_is_known, (row, start + 1, end - start, -end, 3, None)))
        torch._check(start <= end)
        assert not nothing_is_known(start)
        assert not nothing_is_known(end)
        sign, later = fresh(mode), fresh(mode)
        torch._check(sign >= 0)
        assert not nothing_is_known(sign)
        assert nothing_is_known(later)


@pytest.mark.skipif(not fakes.fake_slices_are_expressions(), reason="this torch has slices of our own")
def test_a_slice_of_unknown_bounds_is_torch_s_own() -> None:
    """The same is known of a slice that is made up here as of one that torch makes up."""
    slice_fake = fakes.fake_slice_table()[torch.ops.aten.slice.Tensor]
    with sizes_of_nobody() as (mode, size), mode.shape_env.ignore_fresh_unbacked_symbols():
        x = torch.empty(3, size(0), 5)
        ours = fakes._cut_anywhere(mode, x, 1)
        theirs = slice_fake(mode, torch.ops.aten.slice.Tensor, x, 1, fresh(mode), fresh(mode))
        for out in (ours, theirs):
            assert out.stride() == x.stride()
            assert (out.shape[0], out.shape[2], out.dtype) == (3, 5, x.dtype)
            assert nothing_is_known(out.shape[1]) is nothing_is_known(out.storage_offset()) is False
            facts = (out.shape[1] >= 0, out.shape[1] <= x.shape[1], out.storage_offset() >= 0)
            assert all(map(statically_known_true, facts))
            assert not statically_known_true(out.shape[1] >= 1)


def padded(x: Tensor, rows: Tensor, cu: Tensor) -> Tensor:
    out = rows.clone()
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i, : e - s] = x[s:e]
    return out


def test_checks_of_sizes_do_not_keep_a_graph_from_the_cache() -> None:
    """That there are rows enough is checked: in the next process, of a graph out of the cache, too."""
    x, cu, seen = torch.randn(12, 4), torch.tensor([0, 3, 8, 12]), torch._dynamo.utils.counters
    with fresh_cache():
        for found in ("autograd_cache_miss", "autograd_cache_hit"):
            torch._dynamo.reset()
            seen.clear()
            run = torch.compile(padded, backend=packpass.backend)
            assert torch.equal(run(x, torch.zeros(5, 9, 4), cu), padded(x, torch.zeros(5, 9, 4), cu))
            assert seen["packpass"]["rewrite:vectorize_segments"] == 1
            assert seen["aot_autograd"][found] == 1
            with pytest.raises(IndexError):
                run(x, torch.zeros(2, 9, 4), cu)
