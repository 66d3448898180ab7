"""Graphs of documents through Inductor, which asks what only the data says: slices up to such a number, numbers that
are read twice, logsumexp of rows of unknown length. Values and gradients as eager has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, fx

import packpass
from packpass.decisions.records import Refusal, Rewrite, collecting
from packpass.engine import backend, shorter_code
from packpass.engine.numbers_once import read_once
from packpass.engine.slice_bounds import check_bounds
from packpass.engine.unasked import without_questions


class Collected:
    """Every record."""

    def __init__(self, found: list[Any]) -> None:
        self.found = found

    def add(self, item: Any) -> None:
        self.found.append(item)


BATCHES = ([3, 5, 2, 4], [6, 2], [2, 4, 4, 2, 2, 6])


def row_to_the_last_boundary(x: Tensor, cu: Tensor) -> Tensor:
    x = x[: cu[-1]]
    return torch.cat([x[cu[i] : cu[i + 1]].cumsum(0) for i in range(len(cu) - 1)]).exp()


def row_to_the_sum_of_lengths(x: Tensor, cu: Tensor) -> Tensor:
    lengths = torch.diff(cu).tolist()
    row = x[: sum(lengths)] * 2
    return torch.cat([part.cumsum(0) for part in row.split(lengths)]).exp()


def logsumexp_of_documents(x: Tensor, cu: Tensor) -> Tensor:
    lengths = torch.diff(cu).tolist()
    row = x[: sum(lengths)]
    return torch.stack([part.float().logsumexp(-1).mean() for part in row.split(lengths)])


def log_probabilities(x: Tensor, cu: Tensor) -> Tensor:
    row = x[: cu[-1]]
    parts = [row[cu[i] : cu[i + 1]] for i in range(len(cu) - 1)]
    return torch.cat([part - torch.logsumexp(part, dim=-1, keepdim=True) for part in parts])


def _pooled(x: Tensor, batch: Tensor) -> Tensor:
    out = torch.zeros(batch.max().item() + 1, x.size(1))
    for i in range(batch.max().item() + 1):
        out[i] = x[batch == i].mean(dim=0)
    return torch.softmax(out, dim=1)


def whitened(x: Tensor, cu: Tensor) -> Tensor:
    """What all documents are together, with a mean of 0 and a variance of 1."""
    row = torch.cat([x[cu[i] : cu[i + 1]].cumsum(0) for i in range(len(cu) - 1)])
    return (row - row.mean()) / (row.std() + 1e-6) * row.var(correction=0)


PROGRAMS = (
    row_to_the_last_boundary,
    row_to_the_sum_of_lengths,
    logsumexp_of_documents,
    log_probabilities,
    whitened,
)


def batch_of(lengths: list[int], seed: int) -> tuple[Tensor, Tensor]:
    cu = torch.tensor([0, *lengths]).cumsum(0)
    return torch.randn(int(cu[-1]) + 3, 4, generator=torch.Generator().manual_seed(seed)) * 0.1, cu


def hold(program: Callable[..., Tensor], calls: list[tuple[Tensor, ...]]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=packpass.backend)
    for x, *rest in calls:
        given = [x.clone().requires_grad_() for _ in range(2)]
        made, expected = compiled(given[0], *rest), program(given[1], *rest)
        torch.testing.assert_close(made, expected)
        weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9))
        for out in (made, expected):
            (out * weights).sum().backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(given[0].grad, given[1].grad)


@pytest.mark.parametrize("program", PROGRAMS)
def test_values_and_gradients_are_those_of_eager(program: Callable[..., Tensor]) -> None:
    found: list[Any] = []
    with collecting(Collected(found)):
        hold(program, [batch_of(lengths, seed) for seed, lengths in enumerate(BATCHES)])
    assert any(isinstance(item, Rewrite) for item in found)
    assert not any(isinstance(item, Refusal) for item in found), found


def test_a_number_that_is_read_twice() -> None:
    calls: list[tuple[Tensor, ...]] = []
    for seed, lengths in enumerate(BATCHES):
        x, cu = batch_of(lengths, seed)
        calls.append((x[: int(cu[-1])], torch.repeat_interleave(torch.arange(len(cu) - 1), torch.diff(cu))))
    hold(_pooled, calls)


def test_a_row_that_is_cut_from_its_end_runs_as_it_is_written() -> None:
    def program(x: Tensor, cu: Tensor, end: Tensor) -> Tensor:
        x = x[: end[-1]]
        return torch.cat([x[cu[i] : cu[i + 1]].cumsum(0) for i in range(len(cu) - 1)]).exp()

    calls = []
    for seed, lengths in enumerate(BATCHES):
        x, cu = batch_of(lengths, seed)
        calls.append((x, cu, cu if seed != 1 else torch.full_like(cu, -3)))
    hold(program, calls)  # type: ignore[arg-type]


# === The graphs ==============================================================================================


def captured(program: Callable[..., Any], *args: Tensor) -> fx.Graph:
    seen: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(gm)
        return gm.forward

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        torch.compile(program, backend=backend, dynamic=True)(*args)
    (gm,) = seen
    return gm.graph


def count(graph: fx.Graph, name: str) -> int:
    return sum(name in str(getattr(node.target, "__name__", node.target)) for node in graph.nodes)


def test_only_what_is_the_same_for_certain_is_read_once() -> None:
    ids = torch.tensor([0, 2, 1])

    def same(ids: Tensor) -> Tensor:
        return torch.zeros(ids.max().item() + 1) + torch.ones(ids.max().item() + 1)

    def changed(ids: Tensor) -> Tensor:
        first = torch.zeros(ids.max().item() + 1)
        ids.add_(1)
        return torch.cat((first, torch.ones(ids.max().item() + 1)))

    def others(ids: Tensor) -> Tensor:
        return torch.cat((torch.zeros((ids * 1).max().item()), torch.zeros((ids * True).max().item())))

    def computed(ids: Tensor) -> Tensor:
        return torch.cat((torch.zeros(int(ids.float().max().item())), torch.zeros(int(ids.float().max().item()))))

    for program, reads in ((same, 1), (changed, 2), (others, 2), (computed, 2)):
        graph = captured(program, ids.clone())
        assert count(graph, "item") == 2
        read_once(graph)
        assert count(graph, "item") == reads, program.__name__


def test_a_bound_is_checked_once_and_only_where_it_may_be_negative() -> None:
    def program(x: Tensor, n: Tensor) -> Tensor:
        k = n.sum().item()
        return x[:k].sum() + x[k:].sum() + x[: x.shape[0] - 1].sum()

    def counted(x: Tensor, n: Tensor) -> Tensor:
        k = n.sum().item()
        torch._check(k >= 0)
        return x[:k].sum()

    for of, checks in ((program, 1), (counted, 0)):
        graph = captured(of, torch.ones(5), torch.tensor([2, 1]))
        before = count(graph, "_check")
        check_bounds(graph)
        assert count(graph, "_check") == before + checks


def test_only_logsumexp_of_unknown_rows_over_known_features_is_put_in_other_words() -> None:
    def unknown(x: Tensor, n: Tensor) -> Tensor:
        k = n.sum().item()
        torch._check(k >= 0)
        torch._check(k <= x.shape[0])
        rows = x.narrow(0, 0, k)
        return rows.exp().logsumexp(1)

    def known(x: Tensor, n: Tensor) -> Tensor:
        return x.logsumexp(1)

    x = torch.tensor([[1.0, 2.0], [float("-inf"), float("-inf")], [float("inf"), 1.0], [3.0, 3.0]])
    for program in (unknown, known):
        graph = captured(program, x, torch.tensor([2, 1]))
        without_questions(graph)
        assert count(graph, "logsumexp") in ((0, 1) if program is unknown else (1,))


@pytest.mark.parametrize("keepdim", [False, True])
def test_infinite_slots_are_as_eager_has_them(keepdim: bool) -> None:
    infinite = float("inf")
    x = torch.tensor([[1.0, 2.0], [-infinite, -infinite], [infinite, 1.0], [3.0, -infinite]])

    def program(x: Tensor, cu: Tensor) -> Tensor:
        row = x[: cu[-1]]
        return torch.cat([row[cu[i] : cu[i + 1]].logsumexp(-1, keepdim=keepdim) for i in range(len(cu) - 1)])

    torch._dynamo.reset()
    cu = torch.tensor([0, 1, 4])
    torch.testing.assert_close(torch.compile(program, backend=packpass.backend)(x, cu), program(x, cu))


def test_documents_are_found_and_added_up_in_fewer_words() -> None:
    """Entries by the number of a slot's document, ends of documents, and that there are documents at all."""

    def program(x: Tensor, grid: Tensor) -> Tensor:
        parts, start = [], 0
        for h, w in grid.tolist():
            parts.append(x[start : start + h * w].view(h, w, -1).transpose(0, 1).reshape(h * w, -1))
            start += h * w
        return torch.cat(parts)

    graphs: list[fx.Graph] = []
    original = shorter_code.with_shorter_code

    def noted(graph: fx.Graph) -> None:
        original(graph)
        graphs.append(graph)

    compiled = torch.compile(program, backend=packpass.backend)
    torch._dynamo.reset()
    with mock.patch.object(backend, "with_shorter_code", noted):
        for sizes in ([[2, 3], [4, 1]], [[1, 2], [3, 3], [2, 2]], [[5, 1]]):
            grid = torch.tensor(sizes)
            x = torch.randn(int(grid.prod(1).sum()), 3)
            assert torch.equal(compiled(x, grid), program(x, grid))
    assert graphs and count(graphs[0], "entries.default") and count(graphs[0], "ends.default")
    assert not count(graphs[0], "cumsum")


def test_a_graph_without_documents_keeps_its_words() -> None:
    def program(lengths: Tensor, places: Tensor) -> Tensor:
        return torch.nn.functional.pad(torch.cumsum(lengths, 0), (1, 0)).index_select(0, places)

    graph = captured(program, torch.tensor([1, 2, 3]), torch.tensor([0, 2]))
    before = str(graph)
    shorter_code.with_shorter_code(graph)
    assert str(graph) == before


def test_no_document_that_is_long_enough_is_an_error_as_in_eager() -> None:
    def program(x: Tensor, cu: Tensor) -> Tensor:
        parts = []
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            if e - s < 3:
                continue
            parts.append(x[s:e] * 2)
        return torch.cat(parts)

    torch._dynamo.reset()
    compiled = torch.compile(program, backend=packpass.backend)
    for lengths in ([2, 3], [5, 1, 4]):
        x, cu = torch.randn(sum(lengths)), torch.tensor([0, *lengths]).cumsum(0)
        assert torch.equal(compiled(x, cu), program(x, cu))
    for call in (program, compiled):
        with pytest.raises((RuntimeError, ValueError), match="non-empty list|without entries"):
            call(torch.randn(4), torch.tensor([0, 2, 4]))


def test_a_number_that_must_be_some_needs_no_kernel() -> None:
    def program(count: Tensor, cu: Tensor) -> Tensor:
        n = count.item()
        torch._assert_async(torch.scalar_tensor(n > 0), "there is none")
        return torch.ops.packpass.segment_ids.default(cu, 4) + n

    graph = captured(program, torch.tensor(3), torch.tensor([0, 4]))
    shorter_code.with_shorter_code(graph)
    assert count(graph, "must_be_some") and not count(graph, "assert_async") and not count(graph, "scalar_tensor")
    torch.ops.packpass.must_be_some(1, "there is none")
    with pytest.raises(RuntimeError, match="there is none"):
        torch.ops.packpass.must_be_some(0, "there is none")


@pytest.mark.parametrize("grad", [False, True])
def test_a_check_of_a_number_stands_between_kernels(grad: bool) -> None:
    """Inductor frees what a kernel in front of the check needs only behind that kernel."""

    def program(x: Tensor, numbers: Tensor) -> Tensor:
        count = int(numbers.max()) + 1
        lengths = torch.zeros(count, dtype=torch.long).scatter_add_(0, numbers, torch.ones_like(numbers))
        return torch.cat([torch.tanh(part - part.mean(0)) for part in x.split(lengths.tolist())])

    torch._dynamo.reset()
    compiled = torch.compile(program, backend=packpass.backend)
    for lengths in ([2, 3], [5, 1, 4]):
        x = torch.randn(sum(lengths), 3, requires_grad=grad)
        numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        torch.testing.assert_close(compiled(x, numbers), program(x, numbers))


def test_the_gradient_of_no_deviation_is_that_of_eager() -> None:
    """Nothing differs; one slot; no slot: 0, and no number."""

    def program(x: Tensor, cu: Tensor) -> Tensor:
        row = torch.cat([x[cu[i] : cu[i + 1]] * 2 for i in range(len(cu) - 1)])
        return row.std() + row.var(unbiased=False)

    torch._dynamo.reset()
    compiled = torch.compile(program, backend=packpass.backend)
    for x, lengths in (([2.0, 3.0, 5.0], [2, 1]), ([2.0, 2.0], [1, 1]), ([5.0, 1.0, 1.0], [1, 0]), ([5.0], [0, 0])):
        cu = torch.tensor([0, *lengths]).cumsum(0)
        given = [torch.tensor(x, requires_grad=True) for _ in range(2)]
        made, expected = compiled(given[0], cu), program(given[1], cu)
        torch.testing.assert_close(made, expected, equal_nan=True)
        grads = [torch.autograd.grad(out, g)[0] for out, g in zip((made, expected), given, strict=True)]
        torch.testing.assert_close(*grads, equal_nan=True)
