"""The programs that are measured: naive loops as people write them, and the best forms written by hand."""

from __future__ import annotations

import torch
from torch import Tensor


def boundaries(documents: int, total: int, device: str = "cpu", seed: int = 0) -> Tensor:
    """``cu_seqlens`` (int32, [documents + 1]) of random documents that fill ``total`` slots; none is empty."""
    generator = torch.Generator().manual_seed(seed)
    cuts = torch.randperm(total - 1, generator=generator)[: documents - 1].sort().values + 1
    ends = torch.tensor([0, total])
    return torch.cat((ends[:1], cuts, ends[1:])).to(torch.int32).to(device)


def roll_loop(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Next token per document, along the last dim: roll each document's copy and write it back."""
    out = x.clone()
    for i in range(len(cu_seqlens) - 1):
        start, end = cu_seqlens[i], cu_seqlens[i + 1]
        segment = torch.roll(x[..., start:end], shifts=-1, dims=-1)
        segment[..., -1:] = 0
        out[..., start:end] = segment
    return out


def roll_rows_loop(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The same along dim 0, for hidden states [T, H]."""
    out = x.clone()
    for i in range(len(cu_seqlens) - 1):
        start, end = cu_seqlens[i], cu_seqlens[i + 1]
        segment = torch.roll(x[start:end], shifts=-1, dims=0)
        segment[-1:] = 0
        out[start:end] = segment
    return out


def roll_by_hand(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The best eager form: one roll of the whole row, then the last slot of each document (no empty documents, no
    tail)."""
    return torch.roll(x, -1, -1).index_fill_(-1, (cu_seqlens[1:] - 1).long(), 0)


def roll_rows_by_hand(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The same along dim 0."""
    return torch.roll(x, -1, 0).index_fill_(0, (cu_seqlens[1:] - 1).long(), 0)


def mtp_loop(
    ids: Tensor, positions: Tensor, labels: Tensor, mask: Tensor, cu_seqlens: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Three depths of multi-token prediction: every depth rolls four fields once more and counts its real tokens."""
    fields, counts = [], []
    for _ in range(3):
        ids = roll_loop(ids, cu_seqlens)
        positions = roll_loop(positions, cu_seqlens)
        labels = roll_loop(labels, cu_seqlens)
        mask = roll_loop(mask, cu_seqlens)
        fields += [ids, positions, labels, mask]
        counts.append(mask.sum())
    return fields, counts


def mtp_by_hand(
    ids: Tensor, positions: Tensor, labels: Tensor, mask: Tensor, cu_seqlens: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """The same with one roll and one fill per field and depth, the ends computed once."""
    fields, counts = [], []
    ends = (cu_seqlens[1:] - 1).long()
    for _ in range(3):
        ids, positions, labels, mask = (
            torch.roll(field, -1, -1).index_fill_(-1, ends, 0) for field in (ids, positions, labels, mask)
        )
        fields += [ids, positions, labels, mask]
        counts.append(mask.sum())
    return fields, counts


def labels_loop(ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Labels for next-token prediction on a packed row [1, T]; the last token of each document has none (-100)."""
    labels = ids.clone()
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        document = torch.roll(ids[:, start:end], -1, dims=1)
        document[:, -1:] = -100
        labels[:, start:end] = document
    return labels


def labels_by_hand(ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The same without a loop; slots behind the last document keep their ids, as in the loop."""
    labels = torch.roll(ids, -1, 1).index_fill_(1, (cu_seqlens[1:] - 1).long(), -100)
    tail = torch.arange(ids.shape[1], device=ids.device) >= cu_seqlens[-1]
    return torch.where(tail, ids, labels)
