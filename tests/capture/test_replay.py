"""Replay: loops without a vectorised form run document by document inside one graph, exactly as eager does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from packpass.engine.backend import compile_inner
from packpass.engine.generic import NotReplayable
from packpass.engine.replay import replay

from . import support
from .checks import asserting
from .support import Recorder, boundaries, equal, graphs, hold, no_rule, reported, row


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def compiled(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """``fn`` with its loops replayed, whatever could be vectorised of them."""
    return support.compiled(fn, *args, **{"disable": ["vectorize_segments"], **options})


def cumsum(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].cumsum(1)
    return out * 2


def softmax(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 2
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = torch.softmax(out[:, cu[i] : cu[i + 1]], 1)
    return out + x


def shifted(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = no_rule(x[:, s:e], 1)
    return out


def append_and_cat(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(x[:, s:e].cumsum(1))
    return torch.cat(parts, 1) + 1


def two_lists(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    sums, firsts = [], []
    for s, e in zip(cu[:-1], cu[1:]):
        sums.append(x[:, s:e].sum(1, keepdim=True))
        firsts.append(x[:, s:e].cumsum(1))
    return torch.cat(sums, 1), torch.cat(firsts, 1)


def list_and_total(x: Tensor, cu: Tensor) -> tuple[Tensor, Any]:
    """Between the loop and the end of its list stands what the total is made of."""
    parts: list[Tensor] = []
    total: Any = 0.0
    for i in range(len(cu) - 1):
        d = x[cu[i] : cu[i + 1]]
        parts.append(torch.cumprod(d, 0).flip(0))
        total = total - torch.linalg.vector_norm(d, 3)
    return torch.cat(parts), total


def appends_what_is_outside(x: Tensor, cu: Tensor) -> Tensor:
    parts, one = [], x[:, :1] * 2
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(one)
        x[:, s:e] = x[:, s:e].cumsum(1)
    return torch.cat(parts, 1)


def list_looped_over_again(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(x[:, s:e].cumsum(1))
    again = []
    for part in parts:
        again.append(part.flip(1) * 3)
    return torch.cat(again, 1)


def skip_empty(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        if s == e:
            continue
        out[:, s:e] = x[:, s:e].cumsum(1) - x[:, s:e].max()
    return out


def skip_and_append(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 2:
            continue
        parts.append(x[:, s:e].cumsum(1))
    return torch.cat(parts, 1)


def split(x: Tensor, cu: Tensor) -> Tensor:
    parts = torch.split(x[:, : cu[-1]], cu.diff().tolist(), dim=1)
    return torch.cat([part.cumsum(1) for part in parts], 1)


def two_loops(x: Tensor, cu: Tensor) -> Tensor:
    out = cumsum(x, cu)
    out = torch.tanh(out).roll(1, 0)
    return softmax(out, cu) - out


def state_in_a_tensor(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, before = x.clone(), torch.zeros(2, 1)
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e] + before
        before.add_(x[:, s:e].sum(1, keepdim=True).detach())
    return out, before


def writes_its_input(x: Tensor, cu: Tensor) -> Tensor:
    for s, e in zip(cu[:-1], cu[1:]):
        x[:, s:e] = x[:, s:e].cumsum(1)
    return x.sum()


def a_view_from_before(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out = x.clone()
    first = out[0]
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = out[:, s:e].cumsum(1)
    return out, first * 2


REPLAYED = [
    cumsum,
    softmax,
    shifted,
    append_and_cat,
    two_lists,
    appends_what_is_outside,
    list_and_total,
    list_looped_over_again,
    skip_empty,
    skip_and_append,
    split,
    two_loops,
    state_in_a_tensor,
    writes_its_input,
    a_view_from_before,
]


class Counting(Recorder):
    """Counts the loops in what it gets, to tell that a program is really replayed."""

    @property
    def loops(self) -> int:
        return sum("loop_begin" in str(n.target) for n in self.graphs[-1].graph.nodes) // 2


@pytest.mark.parametrize("fullgraph", [False, True], ids=["", "fullgraph"])
@pytest.mark.parametrize("fn", REPLAYED, ids=lambda f: f.__name__)
def test_equals_eager_in_one_graph(fn: Callable[..., Any], fullgraph: bool) -> None:
    backend = Counting()
    call = compiled(fn, backend=backend, fullgraph=fullgraph)
    hold(fn, call, [4, 9, 3, 30, 5])
    assert graphs() == 1
    assert backend.loops >= 1


@pytest.mark.parametrize("fn", REPLAYED, ids=lambda f: f.__name__)
def test_parts_through_aot_autograd(fn: Callable[..., Any]) -> None:
    call = compiled(fn, inner="aot_eager")
    hold(fn, call, [4, 9, 3])
    assert graphs() <= 2


def lengths_in_front(x: Tensor, cu: Tensor) -> Tensor:
    """The part in front of the loop gets the lengths, and nothing that has as many entries as the boundaries."""
    lengths = [cu[i + 1] - cu[i] for i in range(len(cu) - 1)]
    longest = torch.max(torch.stack(lengths))
    places = [torch.arange(n) + i * 0 * longest for i, n in enumerate(lengths)]
    return x[:, torch.cat(places)]


@pytest.mark.parametrize("fn", [cumsum, append_and_cat, two_loops, lengths_in_front], ids=lambda f: f.__name__)
def test_parts_through_inductor(fn: Callable[..., Any]) -> None:
    call = compiled(fn, inner="inductor")
    for docs in (4, 9):
        torch.testing.assert_close(call(row(), boundaries(docs)), fn(row(), boundaries(docs)))
    assert not any("frame-not-compiled" in key for key in torch._dynamo.utils.counters["packpass"])


def test_rows_of_other_lengths() -> None:
    call = compiled(cumsum)
    for total in (160, 80, 100, 120):
        equal(cumsum(row()[:, :total], boundaries(9)), call(row()[:, :total], boundaries(9)))
    assert graphs() == 2


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([[2.0], [3.0]]))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, cu: Tensor) -> Tensor:
        out = x.clone()
        for s, e in zip(cu[:-1], cu[1:]):
            self.calls += 1
            out[:, s:e] = F.softmax(x[:, s:e] * self.scale, 1)
        return out


def test_parameters_and_buffers() -> None:
    eager, model = Layer(), Layer()
    call = compiled(model)
    for docs in (4, 9, 2):
        for each in (eager, call):
            each(row(), boundaries(docs)).square().sum().backward()
    assert int(eager.calls) == int(model.calls) == 15
    assert eager.scale.grad is not None
    equal(eager.scale.grad, model.scale.grad)


def test_a_users_assert_raises() -> None:
    call = compiled(asserting, fullgraph=True)
    hold(asserting, call, [4, 9])
    long = torch.tensor([0, 2, 9])
    with pytest.raises(AssertionError):
        asserting(row(grad=True), long)
    with pytest.raises((AssertionError, RuntimeError), match="checks.py"):
        call(row(grad=True), long)
    assert graphs() == 1


def test_splits_must_fill_the_row() -> None:
    def fn(x: Tensor, cu: Tensor) -> Tensor:
        return torch.cat([part.cumsum(1) for part in x.split(cu.diff().tolist(), 1)], 1)

    call = compiled(fn)
    full = torch.tensor([0, 5, 160])
    equal(fn(row(), full), call(row(), full))
    with pytest.raises(RuntimeError, match="split"):
        call(row(), boundaries(2))


# === What must not be replayed ===============================================================================


def grad_mode_in_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        with torch.no_grad():
            out[:, s:e] = no_rule(x[:, s:e], 1)
    return out


def grad_mode_before_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.sum(1, keepdim=True)
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = no_rule(x[:, s:e], 1) * scale
    return out


def leaked_value(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        last = x[:, s:e].cumsum(1)
        out[:, s:e] = last
    return out + last.sum()


def counted_documents(x: Tensor, cu: Tensor) -> Tensor:
    out, n = x.clone(), 0
    for s, e in zip(cu[:-1], cu[1:]):
        n = 1 - n
        out[:, s:e] = x[:, s:e].cumsum(1) * n
    return out


def appended_before_a_skip(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, parts = x.clone(), []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(x[:, s:e].cumsum(1))
        if e - s < 2:
            continue
        out[:, s:e] = 0
    return torch.cat(parts, 1), out


def list_with_gaps(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1], cu[1:]):
        if e == s:
            continue
        parts.append(x[:, s:e].cumsum(1))
    return torch.cat([part * 2 for part in parts], 1)


def rank_depends_on_a_length(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].cumsum(1) * x[:, s:e].squeeze(1).dim()
    return out


def rank_grows(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    out, grown = x.clone(), torch.ones(2)
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].cumsum(1)
        grown.unsqueeze_(0)
    return out, grown.dim()


def transposed_every_time(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    out, turned = x.clone(), torch.ones(2, 3)
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].cumsum(1)
        turned.t_()
    return out, turned.shape[0]


NOT_REPLAYED = [
    grad_mode_in_the_loop,
    grad_mode_before_the_loop,
    leaked_value,
    counted_documents,
    appended_before_a_skip,
    list_with_gaps,
    rank_depends_on_a_length,
    rank_grows,
    transposed_every_time,
]


@pytest.mark.parametrize("fn", NOT_REPLAYED, ids=lambda f: f.__name__)
def test_not_replayed_and_equal_to_eager(monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Any]) -> None:
    done: list[bool] = []

    def watched(*args: Any) -> Any:
        compiled_loops = replay(*args)
        done.append(True)
        return compiled_loops

    monkeypatch.setattr("packpass.engine.backend.replay", watched)
    hold(fn, compiled(fn), [5, 4, 9, 3])
    assert not done
    assert reported(fn, row(), boundaries(5)).refusals


def test_lengths_that_are_taken_for_equal_are_not_replayed() -> None:
    """Tracing takes unknown lengths for equal where they meet; eager may broadcast a document of one token."""

    def fn(x: Tensor, cu: Tensor, y: Tensor, cu_y: Tensor) -> Tensor:
        parts = []
        for i in range(len(cu) - 1):
            both = x[:, cu[i] : cu[i + 1]] + y[:, cu_y[i] : cu_y[i + 1]]
            parts.append(both.cumsum(1) * both.shape[1])
        return torch.cat(parts, 1)

    same, ones, threes = torch.tensor([0, 3, 6]), torch.tensor([0, 1, 2]), torch.tensor([0, 3, 6])
    call = compiled(fn)
    equal(fn(row(), same, row(), threes), call(row(), same, row(), threes))
    assert fn(row(), ones, row(), threes).shape == (2, 6)
    equal(fn(row(), ones, row(), threes), call(row(), ones, row(), threes))
    off = compiled(fn, symbolic_loops=False)
    equal(fn(row(), ones, row(), threes), off(row(), ones, row(), threes))


def test_iterations_that_differ_are_refused() -> None:
    """The proof itself, on a graph whose second iteration was tampered with."""
    for tamper in ("op", "constant", "operand"):
        backend = Recorder()
        compiled(cumsum, backend=backend)(row(), boundaries(4))
        gm = backend.graphs[-1]
        second = [n for n in gm.graph.nodes if n.target == "cumsum"][1]
        if tamper == "op":
            second.target = "cumprod"
        elif tamper == "constant":
            second.args = (second.args[0], 0)
        else:
            second.args = (next(n for n in gm.graph.nodes if n.target == "cumsum"), *second.args[1:])
        with pytest.raises(NotReplayable, match="differ"):
            replay(gm, lambda part, inputs: part.forward)


def test_a_doubt_is_the_reason() -> None:
    backend = Recorder()
    compiled(cumsum, backend=backend)(row(), boundaries(4))
    with pytest.raises(NotReplayable, match="for a reason"):
        replay(backend.graphs[-1], lambda part, inputs: part.forward, "for a reason")


def test_nothing_is_compiled_for_what_is_not_replayed() -> None:
    backend = Recorder()
    compiled(cumsum, backend=backend)(row(), boundaries(4))
    gm, parts = backend.graphs[-1], []
    run = replay(gm, lambda part, inputs: parts.append(part) or part.forward)  # type: ignore[func-returns-value]
    assert callable(run)
    assert len(parts) == 2  # before and after the loop, and not the loop
    assert compile_inner is not None
