"""Gradients: numerically right, twice; and always a packed op, never a scatter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from packpass.ops import packed_roll
from tests.ops import reference

CU = torch.tensor([1, 4, 4, 5, 9])
PADDED = torch.tensor([1, 5, 5, 7, 11])
FLIP = torch.ops.packpass.packed_flip


@pytest.mark.parametrize("fill", [0, 1.5, None])
@pytest.mark.parametrize("shift", [-1, 2, -30])
@pytest.mark.parametrize("padded", [None, PADDED])
def test_packed_roll(shift: int, fill: float | None, padded: Tensor | None) -> None:
    x = torch.randn(12, dtype=torch.double, requires_grad=True)

    def call(x: Tensor) -> Tensor:
        return packed_roll(x, CU, shift, 0, fill, padded)

    assert gradcheck(call, x)
    assert gradgradcheck(call, x)


def test_packed_roll_complex_and_inner_dimensions() -> None:
    x = torch.randn(2, 10, 2, dtype=torch.complex128, requires_grad=True)
    assert gradcheck(lambda x: packed_roll(x, CU, -1, 1), x)


def test_packed_flip() -> None:
    x = torch.randn(2, 10, dtype=torch.double, requires_grad=True)
    assert gradcheck(lambda x: FLIP(x, CU, 1), x)
    assert gradgradcheck(lambda x: FLIP(x, CU, 1), x)


@pytest.mark.parametrize(
    ("call", "backward"),
    [
        (lambda x: packed_roll(x, CU, -2), lambda g: reference.roll(g, CU, 2)),
        (lambda x: packed_roll(x, CU, 1, fill=7), lambda g: reference.roll(g, CU, -1)),
        (lambda x: packed_roll(x, CU, -2, fill=None), lambda g: reference.roll(g, CU, 2, fill=None)),
        (lambda x: packed_roll(x, CU, -1, cu_seqlens_padded=PADDED), lambda g: reference.roll(g, CU, 1, 0, 0, PADDED)),
        (lambda x: FLIP(x, CU, 0), lambda g: reference.flip(g, CU, 0)),
    ],
)
def test_backward_is_the_inverse_packed_op(
    call: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]
) -> None:
    seen: list[str] = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(12, requires_grad=True)
    result = call(x)
    grad = torch.arange(1.0, 13.0)
    with Record():
        result.backward(grad)
    assert torch.equal(x.grad, backward(grad))
    packed = [name for name in seen if name.startswith("packpass.")]
    assert packed in (["packpass.packed_roll.default"], ["packpass.packed_flip.default"])
    assert not any("scatter" in name or "index_add" in name or "index_put" in name for name in seen)


def test_integers_take_no_gradient() -> None:
    assert not packed_roll(torch.arange(12), CU).requires_grad


OPCHECKS = {
    "packed_roll": (torch.randn(12, requires_grad=True), CU, -1, 0, 0),
    "packed_roll wrap": (torch.randn(3, 12, requires_grad=True), CU.int(), 2, -1, None),
    "packed_roll padded": (torch.randn(12, 2, requires_grad=True), CU, -1, 0, 1.5, PADDED),
    "packed_roll bool": (torch.ones(12, dtype=torch.bool), CU, -1, 0, True),
    "packed_roll strided": (torch.randn(2, 12, requires_grad=True).t(), CU, -1, 0, 0),
    "packed_flip": (torch.randn(3, 12, requires_grad=True), CU, 1),
    "position_ids": (CU, 12),
    "segment_ids": (CU, 12),
    "boundaries_passed": (CU.int(), 12),
    "window_mask": (CU, 12, 1, 0),
    "check_cu_seqlens": (CU, 12),
    "check_cu_seqlens padded": (CU, 12, PADDED),
    "host_check_cu_seqlens": (CU, 12),
    "ends": (torch.tensor([3, 0, 4]),),
    "entries": (torch.tensor([3, 0, 4]), torch.tensor([2, 0, 1, 1])),
    "must_be_some": (3, "the test"),
    "must_hold": (torch.tensor(True), "the test"),
    "must_equal": (torch.arange(3), torch.arange(3), "the test"),
    "host_packed_roll": (torch.randn(12), CU, -1, 0, 0),
    "moved_blocks": (torch.randn(3, 140), torch.tensor([0, 1]), 5, 2, -1),
    "row_of": (torch.randn(3, 2, 64),),
    "per_block": (torch.arange(2), torch.randn(3, 2, 64)),
}


@pytest.mark.parametrize("case", OPCHECKS)
def test_opcheck(case: str) -> None:
    op = getattr(torch.ops.packpass, case.split()[0]).default
    torch.library.opcheck(op, OPCHECKS[case])
