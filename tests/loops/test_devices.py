"""Loops whose tensors lie on several devices: what a loop leaves lies where eager has it.

Values are compared on a real GPU (`test_cuda`); here the devices are, without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report
from tests.ops.fake_gpu import fake_gpu, fakes

from .compiling import EAGER, fresh

CU = torch.tensor([0, 5, 6, 9, 16], dtype=torch.int32)
ROW = torch.zeros(16)


def spans(cu: Tensor) -> Any:
    return zip(cu[:-1].tolist(), cu[1:].tolist())


def positions_made_on_the_host(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.arange(e - s) for s, e in spans(cu)])


def positions_made_on_the_row_s_device(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.arange(e - s, device=x.device) for s, e in spans(cu)])


def into_a_buffer_on_the_host(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0])
    for s, e in spans(cu):
        out[s:e] = torch.roll(x[s:e], -1, 0)
    return out


def into_a_buffer_beside_the_row(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in spans(cu):
        out[s:e] = x[s:e].flip(0)
    return out


def moved_to_the_host(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s:e].cumsum(0).cpu() for s, e in spans(cu)])


def padded_on_the_host(x: Tensor, cu: Tensor) -> Tensor:
    rows = torch.zeros(len(cu) - 1, 8)
    for i, (s, e) in enumerate(spans(cu)):
        rows[i, : e - s] = x[s:e]
    return rows


def sums_of_documents(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[s:e].sum() for s, e in spans(cu)])


def sums_moved_to_the_host(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[s:e].sum().cpu() for s, e in spans(cu)])


def softmax_of_documents(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s:e].softmax(0) for s, e in spans(cu)])


def masks_of_squares(x: Tensor, cu: Tensor) -> Tensor:
    return torch.block_diag(*[torch.ones(e - s, e - s) for s, e in spans(cu)])


def lists_of_positions(x: Tensor, cu: Tensor) -> Tensor:
    numbers: list[int] = []
    for s, e in spans(cu):
        numbers.extend(range(e - s))
    return torch.tensor(numbers)


def weighted_by_a_row_on_the_host(x: Tensor, cu: Tensor) -> Tensor:
    weights = torch.ones(x.shape[0])
    return torch.cat([x[s:e] * weights[s:e].to(x.device) for s, e in spans(cu)])


def without_the_last_of_each(x: Tensor, cu: Tensor) -> Tensor:
    y = x.clone()
    for s, e in spans(cu):
        y[s : e - 1] = x[s + 1 : e]
    return y


HOST: list[Callable[..., Tensor]] = [
    positions_made_on_the_host, into_a_buffer_on_the_host, moved_to_the_host, padded_on_the_host, masks_of_squares,
    lists_of_positions, sums_moved_to_the_host,
]  # fmt: skip
BESIDE: list[Callable[..., Tensor]] = [
    positions_made_on_the_row_s_device, into_a_buffer_beside_the_row, sums_of_documents, softmax_of_documents,
    weighted_by_a_row_on_the_host, without_the_last_of_each,
]  # fmt: skip


@pytest.mark.parametrize("boundaries", ["cuda", "cpu"])
@pytest.mark.parametrize("program", [*HOST, *BESIDE])
def test_results_lie_where_eager_has_them(program: Callable[..., Tensor], boundaries: str) -> None:
    _hold(program, "cuda", boundaries, "cpu" if program in HOST else "cuda")


@pytest.mark.parametrize("program", [*HOST, *BESIDE])
def test_boundaries_on_the_gpu_of_rows_on_the_host(program: Callable[..., Tensor]) -> None:
    _hold(program, "cpu", "cuda", "cpu")


def _hold(program: Callable[..., Tensor], row: str, boundaries: str, expected: str) -> None:
    fresh()
    report = Report()
    with fake_gpu() as mode:
        x, cu = fakes(mode, (ROW, CU), (row, boundaries))
        with mode, collecting(report):
            out = torch.compile(program, backend=packpass.backend, fullgraph=True, **EAGER)(x, cu)
    assert report.rewrites, report.refusals
    assert {leaf.device.type for leaf in tree_leaves(out)} == {expected}


def test_what_mixes_devices_in_eager_as_well_is_no_rewrite() -> None:
    """A fake run of our own ops asks for one device, as torch's ops do."""
    with fake_gpu() as mode:
        x, cu = fakes(mode, (ROW, CU), ("cuda", "cpu"))
        with (
            mode,
            pytest.raises(RuntimeError, match="packed_roll: expected all tensors on one device, got cpu and cuda"),
        ):
            torch.ops.packpass.packed_roll.default(x, cu, -1, 0, 0)
