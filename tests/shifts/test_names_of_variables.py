"""What a variable is called decides nothing: the same program in other words is treated the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass

CU = torch.tensor([0, 3, 7, 12])


def compared(row: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """Shifted, filled with 0, and compared with 0."""
    out = torch.roll(packpass.packed(row, cu), -1, 0)
    out[-1:] = 0
    return out, out != 0


def loss(loss_mask: Tensor, cu: Tensor) -> Any:
    return compared(loss_mask, cu)


def ids(input_ids: Tensor, cu: Tensor) -> Any:
    return compared(input_ids, cu)


def words(labels: Tensor, cu: Tensor) -> Any:
    return compared(labels, cu)


def decisions(fn: Callable[..., Any], row: Tensor) -> tuple[list[str], list[str], list[list[Any]]]:
    torch._dynamo.reset()
    report = packpass.explain(fn, options={"packpass.inner_backend": "eager"})(row, CU)
    rules, codes = [r.rule for r in report.rewrites], [r.code for r in report.refusals]
    return rules, codes, [value.tolist() for value in report.result]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_masks_labels_and_ids_are_their_values(dtype: torch.dtype) -> None:
    row = (torch.arange(12) % 4).to(dtype)
    first, *others = (decisions(fn, row) for fn in (loss, ids, words))
    assert first[0] or first[1], "nothing was decided"
    assert others == [first] * 2
