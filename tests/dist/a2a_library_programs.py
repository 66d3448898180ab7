"""Programs of `a2a_hard_programs` as libraries write them: megatron-core's linear attention, and rows of
several tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.dist.a2a_moves import gathered, size_of, unzigzag, zigzag
from tests.dist.a2a_spelled_programs import Lists, _unsorted, documents
from tests.dist.naive import AllToAll


def _unpacked(x: Tensor, cu: Tensor) -> list[Tensor]:
    """The documents, as slices along a dimension that is counted."""
    out = []
    for i in range(cu.shape[0] - 1):
        at = [slice(None)] * x.dim()
        at[0] = slice(cu[i], cu[i + 1])
        out.append(x[tuple(at)])
    return out


def _to_heads(t: Tensor, group: Any) -> Tensor:
    rows, width = t.shape
    t = torch.cat(torch.split(t, width // size_of(group), dim=1))
    return AllToAll.apply(t.contiguous(), group).reshape(rows * size_of(group), -1)  # type: ignore[no-any-return]


def _to_tokens(t: Tensor, group: Any) -> Tensor:
    """The parts of the ranks are split by their length."""
    got = AllToAll.apply(t.contiguous(), group)
    return torch.cat(torch.split(got, t.shape[0] // size_of(group), dim=0), dim=-1)


def split_by_the_length_of_a_part(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    heads = torch.cat([unzigzag(_to_heads(d, group), cp) for d in _unpacked(x, cu // cp)])
    return torch.cat([_to_tokens(zigzag(d, cp), group) for d in _unpacked(heads.sin(), cu)])


def rows_of_two(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, outs = size_of(group), []
    for s, e in documents(cu):
        outs.append((gathered(x[s // cp : e // cp, : 8 * cp], group), gathered(x[s // cp : e // cp, 8 * cp :], group)))
    queries, keys = zip(*outs, strict=True)
    return torch.cat([torch.cat(keys), torch.cat(queries)], -1)


def dicts_of_two(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, outs = size_of(group), []
    for s, e in documents(cu):
        part = x[s // cp : e // cp]
        outs.append({"q": gathered(part[:, : 8 * cp], group), "k": gathered(part[:, 8 * cp :], group)})
    return torch.cat([torch.cat([out["q"] for out in outs]), torch.cat([out["k"] for out in outs])], -1)


# === Left as they are ===========================================================================================


def split_in_three(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Another number of parts than there are ranks, and of another length for most documents."""
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        got = AllToAll.apply(zigzag(x[s:e], cp).contiguous(), group)
        rows.append(sum(part.sum(0, keepdim=True) * (i + 1) for i, part in enumerate(got.split(max(1, (e - s) // 3)))))
    return torch.cat(rows)


def one_row_kept(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What was computed is changed when it has been handed to the function."""
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        part = x[s // cp : e // cp] * 2
        got = _unsorted(Lists.apply(part, 1, 0, group), cp)
        part.detach().mul_(3)
        rows.append(got + part.detach().sum())
    return torch.cat(rows)
