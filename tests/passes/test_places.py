"""Slots at places that all documents share, and other spellings of what is taken over a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from .collected import Body, arguments, compiled, equal_to_eager, program, raises_as_eager, refusal_of


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


ONE, TWO, LAST = torch.tensor([1]), torch.tensor([2, 0]), torch.tensor([-1])
SAME, SQUARE = torch.tensor([1, 1]), torch.tensor([[0, -1], [1, -2]])
ROWS = torch.arange(8.0).view(2, 4)

BODIES: dict[str, tuple[Body, str, int]] = {
    # What is collected per document, how it is put together, slots of the shortest document.
    "selected": (lambda x: x.index_select(0, TWO), "stack", 3),
    "selected_and_joined": (lambda x: torch.index_select(x, 0, ONE), "cat", 2),
    "taken": (lambda x: x[:, 0].take(SQUARE), "stack", 2),
    "taken_once": (lambda x: torch.take(x[:, 1], LAST[0]), "stack", 1),
    "filled": (lambda x: x.index_fill(0, TWO, 7.0), "cat", 3),
    "filled_at_the_end": (lambda x: x.index_fill(0, LAST, 0) * x, "cat", 1),
    "filled_with_a_tensor": (lambda x: torch.index_fill(x, 0, ONE, ROWS[0, 3]), "cat", 2),
    "copied": (lambda x: x.index_copy(0, TWO, ROWS), "cat", 3),
    "added": (lambda x: x.index_add(0, TWO, ROWS, alpha=-2), "cat", 3),
    "added_twice_to_one": (lambda x: x.index_add(0, SAME, ROWS), "cat", 2),
    "put": (lambda x: x[:, 0].put(LAST, ROWS[0, :1]), "cat", 1),
    "put_and_added": (lambda x: x[:, 0].put(SAME, ROWS[1, :2], accumulate=True), "cat", 2),
    "put_by_index": (lambda x: x.index_put((LAST,), ROWS[:1]), "cat", 1),
    "multiplied": (lambda x: x.index_reduce(0, ONE, ROWS[1:], "prod"), "cat", 2),
    "the_larger": (lambda x: x.index_reduce(0, ONE, ROWS[1:] / 4, "amax"), "cat", 2),
    "trace": (lambda x: x.trace(), "stack", 0),
    "trace_of_columns": (lambda x: torch.trace(x.t() * 2), "stack", 0),
    "dot": (lambda x: x[:, 0].dot(x[:, 1]), "stack", 0),
    "inner": (lambda x: torch.inner(x[:, 0], x[:, 1]), "stack", 0),
    "vdot": (lambda x: torch.vdot(x[:, 2], x[:, 1]), "stack", 0),
    "weighted_rows": (lambda x: x[:, 0] @ x, "stack", 0),
    "places_of_running_maxima": (lambda x: x.cummax(0).indices, "cat", 0),
    "places_of_running_minima": (lambda x: torch.cummin(x[:, 1], dim=0)[1] + x[:, 0].cummin(0)[0], "cat", 0),
    "places_of_running_maxima_of_integers": (lambda x: x.nan_to_num(0, 0, 0).mul(4).long().cummax(0)[1], "cat", 0),
    "rolled_flat": (lambda x: x.roll(3), "cat", 0),
    "rolled_flat_far": (lambda x: torch.roll(x, -30) * x, "cat", 0),
    "no_difference": (lambda x: x.diff(n=0, dim=0), "cat", 0),
    "no_difference_of_more": (lambda x: x.diff(n=0, dim=0, prepend=x[:1])[1:], "cat", 0),
    "safe_softmax": (lambda x: torch.ops.aten._safe_softmax.default(x, 0), "cat", 0),
    "safe_softmax_of_nothing": (
        lambda x: torch.ops.aten._safe_softmax.default(x.masked_fill(x > -9, float("-inf")), 0), "cat", 0,
    ),
    "summed_to_one_row": (lambda x: x.sum_to_size(1, 4), "cat", 0),
    "summed_to_a_row_less": (lambda x: x.sum_to_size(4), "stack", 0),
    "masked_logsumexp": (lambda x: torch.masked.logsumexp(x[:, 0], 0, mask=x[:, 1] > 0), "stack", 1),
    "solved_for_vectors": (
        lambda x: torch.linalg.solve(torch.eye(4) * 3 + x[:, :, None] * 0.1, x * 2), "cat", 0,
    ),
    "emptied": (lambda x: (x * 1).zero_(), "cat", 0),
    "masked_argmax": (lambda x: torch.masked.argmax(x[:, 0], mask=x[:, 1] > -9), "stack", 1),
    "cosine_embedding": (
        lambda x: F.cosine_embedding_loss(x, x.roll(1, 1), (x[:, 0] > 0) * 2.0 - 1, reduction="none"), "cat", 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_rewritten_and_equal(name: str) -> None:
    equal_to_eager(*BODIES[name])


NAN = ["selected", "filled", "added", "trace", "places_of_running_maxima", "places_of_running_minima", "rolled_flat"]


@pytest.mark.parametrize("name", NAN)
def test_rewritten_and_equal_with_nan(name: str) -> None:
    equal_to_eager(*BODIES[name], nan=True)


@pytest.mark.parametrize("name", ["selected", "added", "rolled_flat", "places_of_running_minima"])
@pytest.mark.parametrize("inner", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_through_aot_autograd(name: str, inner: str) -> None:
    equal_to_eager(*BODIES[name], inner=inner)


@pytest.mark.parametrize("name", ["selected_and_joined", "filled", "copied", "taken_once", "masked_argmax"])
def test_places_beyond_a_document_raise(name: str) -> None:
    body, join, _ = BODIES[name]
    raises_as_eager(body, join)


def test_other_columns_are_worked_out_slot_by_slot() -> None:
    equal_to_eager(lambda x: x.sum_to_size(len(x), 1), "cat", rule="ragged_grids")


def test_sources_get_their_gradients() -> None:
    """From the slots that they were put to in every document, and from no others, whatever these hold."""

    def body(x: Tensor, rows: Tensor) -> Tensor:
        one = x.index_reduce(0, ONE, rows[1:], "prod") + x.index_copy(0, ONE, rows[:1])
        return one + x.index_add(0, TWO, rows, alpha=3) * x.index_fill(0, ONE, rows[0, 0])

    def collected(x: Tensor, rows: Tensor, cu: Tensor) -> Tensor:
        out = []
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            out.append(body(x[s:e], rows))
        return torch.cat(out)

    found = []
    for fn in (collected, compiled(collected)):
        x, cu = arguments((3, 9, 4))
        rows = (ROWS + 0.5).requires_grad_()
        out = fn(x, rows, cu)
        (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
        found.append((out.detach(), x.grad, rows.grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(b, a)


def test_what_is_emptied_still_has_a_gradient() -> None:
    """Of zeros: a loss of it alone can be differentiated in eager."""
    x, cu = arguments((3, 2))
    compiled(program(BODIES["emptied"][0], "cat"))(x, cu).sum().backward()
    assert x.grad is not None and not x.grad.any()


LEFT_ALONE: dict[str, tuple[Callable[..., Any], str]] = {
    "selected_by_its_own": (lambda x: x.index_select(0, (x[:2, 0] > 0).long()), "stack"),
    "taken_from_all_columns": (lambda x: x.take(ONE), "stack"),
    "filled_with_its_own": (lambda x: x.detach().index_fill(0, ONE, x.detach()[0, 0]), "cat"),
    "copied_from_itself": (lambda x: x.index_copy(0, ONE, x[:1]), "cat"),
    "put_by_mask": (lambda x: x.index_put((x > 0,), torch.tensor(1.0)), "cat"),
    "put_in_two_dimensions": (lambda x: x.index_put((ONE, ONE), ROWS[0, :1]), "cat"),
    "mean_at_places": (lambda x: x.index_reduce(0, ONE, ROWS[:1], "mean"), "cat"),
    "two_products": (lambda x: x.index_reduce(0, TWO, ROWS, "prod"), "cat"),
    "without_itself": (lambda x: x.index_reduce(0, ONE, ROWS[:1], "amax", include_self=False), "cat"),
    "trace_of_a_part": (lambda x: x[1:].trace(), "stack"),
    "products_of_rows": (lambda x: torch.inner(x[:, 0], x.t()), "stack"),
    "masked_logsumexp_by_one_mask": (lambda x: torch.masked.logsumexp(x, 0, mask=ROWS[0] > 1), "stack"),
    "flags_so_far": (lambda x: (x > 0).cummax(0).indices, "cat"),
    "places_in_a_part": (lambda x: torch.cat([x[:1], x[1:].cummax(0).indices + 0.0]), "cat"),
    "columns_rolled_flat": (lambda x: x.t().roll(3).t(), "cat"),
    "differences": (lambda x: torch.cat([x[:1], x.diff(dim=0)]), "cat"),
    "crossed_along_what_is_three": (lambda x: torch.cross(x[:, :3], x[:, 1:]), "cat"),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(name: str) -> None:
    assert refusal_of(*LEFT_ALONE[name])
