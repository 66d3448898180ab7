"""Slow references of the packed ops: the definitions of their docstrings as Python loops over slots."""

from __future__ import annotations

import random
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def roll(
    x: Tensor,
    cu_seqlens: Tensor,
    shift: int = -1,
    dim: int = -1,
    fill: complex | None = 0,
    cu_seqlens_padded: Tensor | None = None,
) -> Tensor:
    out, source = x.movedim(dim, 0).clone(), x.movedim(dim, 0)
    cu = cu_seqlens.tolist()
    begin = cu if cu_seqlens_padded is None else cu_seqlens_padded.tolist()
    for d in range(len(cu) - 1):
        start, stop = begin[d], begin[d] + cu[d + 1] - cu[d]
        for p in range(start, stop):
            q = p - shift
            if fill is None:
                out[p] = source[start + (q - start) % (stop - start)]
            else:
                out[p] = source[q] if start <= q < stop else fill
        if fill is not None:
            out[stop : begin[d + 1]] = fill
    return out.movedim(0, dim).contiguous()


def flip(x: Tensor, cu_seqlens: Tensor, dim: int) -> Tensor:
    out = x.movedim(dim, 0).clone()
    for start, stop in pairwise(cu_seqlens.tolist()):
        out[start:stop] = out[start:stop].flip(0)
    return out.movedim(0, dim).contiguous()


def position_ids(cu_seqlens: Tensor, total: int) -> Tensor:
    edges = [0, *cu_seqlens.tolist(), total]
    return torch.tensor([p for start, stop in pairwise(edges) for p in range(stop - start)], dtype=torch.int64)


def segment_ids(cu_seqlens: Tensor, total: int) -> Tensor:
    edges = [0, *cu_seqlens.tolist(), total]
    stretches = enumerate(pairwise(edges), start=-1)
    return torch.tensor([d for d, (start, stop) in stretches for _ in range(stop - start)], dtype=torch.int64)


def window_mask(cu_seqlens: Tensor, total: int, front: int, back: int) -> Tensor:
    out = torch.zeros(total, dtype=torch.bool)
    for start, stop in pairwise(cu_seqlens.tolist()):
        for p in range(start, stop):
            out[p] = start + front <= p < stop - back
    return out


def documents(total: int, count: int, *, head: int = 0, tail: int = 0, dtype: torch.dtype = torch.int32) -> Tensor:
    """Boundaries of ``count`` random documents, some of them empty, in ``total`` slots with tails at both ends."""
    numbers = random.Random(total * 1000 + count)
    inner = sorted(numbers.randint(head, total - tail) for _ in range(count - 1))
    return torch.tensor([head, *inner, total - tail], dtype=dtype)


def padded_documents(total: int, count: int, dtype: torch.dtype = torch.int32) -> tuple[Tensor, Tensor]:
    """``(cu_seqlens, cu_seqlens_padded)``: physical boundaries as above, logical lengths at most as long."""
    padded = documents(total, count, head=1, tail=2, dtype=dtype)
    numbers = random.Random(total + count)
    lengths = [numbers.randint(max(0, room - 3), room) for room in padded.diff().tolist()]
    return torch.tensor([0, *lengths], dtype=dtype).cumsum(0, dtype=dtype), padded


def sample(dtype: torch.dtype, *shape: int) -> Tensor:
    """Values that differ from slot to slot and are exact in every dtype."""
    count = torch.Size(shape).numel()
    values = (torch.arange(count) * 7 + 1) % 61
    if dtype is torch.bool:
        return (values % 2 == 0).view(shape)
    if dtype.is_complex:
        return torch.complex(values.double(), -values.double()).to(dtype).view(shape)
    if dtype.is_floating_point and dtype.itemsize == 1:
        return (values % 8).float().to(dtype).view(shape)
    return values.to(dtype).view(shape)


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, in dtypes that torch cannot compare as well."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


# === Segment ops: what a loop over documents does to each of them ================================================

REDUCTIONS = {"sum": torch.sum, "prod": torch.prod, "amax": torch.amax, "amin": torch.amin}
SCANS = {
    "sum": torch.cumsum,
    "prod": torch.cumprod,
    "max": lambda x, dim: x.cummax(dim).values,
    "min": lambda x, dim: x.cummin(dim).values,
    "logsumexp": torch.logcumsumexp,
}


def segments(x: Tensor, cu_seqlens: Tensor, dim: int) -> list[Tensor]:
    """The documents, packed dimension first."""
    rows = x.movedim(dim, 0)
    return [rows[start:stop] for start, stop in pairwise(cu_seqlens.tolist())]


def per_document(results: list[Tensor], like: Tensor) -> Tensor:
    """``[N, *rest]``: stacked, also where there are none."""
    return torch.stack(results) if results else like.new_zeros([0, *like.shape])


def segment_reduce(x: Tensor, cu_seqlens: Tensor, reduce: str, dim: int, empty: complex) -> Tensor:
    """In the dtype of x, computed in float32 or better; ``empty``: the value of empty documents."""
    results = []
    for document in segments(x, cu_seqlens, dim):
        wide = document.float() if x.dtype in (torch.bfloat16, torch.float16) else document
        reduced = REDUCTIONS[reduce](wide, 0) if len(wide) else torch.full(wide.shape[1:], empty)
        results.append(reduced.to(x.dtype))
    return per_document(results, x.movedim(dim, 0)[0])


def segment_argmax(x: Tensor, cu_seqlens: Tensor, largest: bool, dim: int) -> Tensor:
    results = []
    for document in segments(x, cu_seqlens, dim):
        found = (document.max if largest else document.min)(0).indices if len(document) else None
        results.append(torch.zeros(document.shape[1:], dtype=torch.int64) if found is None else found)
    return per_document(results, x.movedim(dim, 0)[0].long())


def segment_take(x: Tensor, cu_seqlens: Tensor, positions: Tensor, dim: int) -> Tensor:
    rest = x.movedim(dim, 0).shape[1:]
    results = []
    for document, wanted in zip(segments(x, cu_seqlens, dim), positions, strict=False):
        wanted = wanted.expand(rest)
        wanted = torch.where(wanted < 0, wanted + len(document), wanted)
        inside = (wanted >= 0) & (wanted < len(document))
        if len(document):
            taken = document.gather(0, wanted.clamp(0, len(document) - 1).unsqueeze(0))[0]
            results.append(torch.where(inside, taken, torch.zeros((), dtype=x.dtype)))
        else:
            results.append(x.new_zeros(rest))
    return per_document(results, x.new_zeros(rest))


def segment_spread(values: Tensor, cu_seqlens: Tensor, total: int) -> Tensor:
    out = values.new_zeros([total, *values.shape[1:]])
    for d, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        out[start:stop] = values[d]
    return out


def segment_scan(x: Tensor, cu_seqlens: Tensor, op: str, dim: int, reverse: bool = False) -> Tensor:
    out = x.movedim(dim, 0).clone()
    for start, stop in pairwise(cu_seqlens.tolist()):
        document = out[start:stop].flip(0) if reverse else out[start:stop]
        if len(document):
            scanned = SCANS[op](document.float() if x.dtype is torch.float16 else document, 0).to(x.dtype)
            out[start:stop] = scanned.flip(0) if reverse else scanned
    return out.movedim(0, dim).contiguous()


def segment_softmax(x: Tensor, cu_seqlens: Tensor, dim: int, log: bool) -> Tensor:
    out = x.movedim(dim, 0).clone()
    for start, stop in pairwise(cu_seqlens.tolist()):
        document = out[start:stop].float() if x.dtype in (torch.bfloat16, torch.float16) else out[start:stop].clone()
        out[start:stop] = (torch.log_softmax if log else torch.softmax)(document, 0).to(x.dtype)
    return out.movedim(0, dim).contiguous()


def segment_pad(x: Tensor, cu_seqlens: Tensor, dim: int, fill: float, left: bool = False) -> Tensor:
    side = "left" if left else "right"
    return pad_sequence(segments(x, cu_seqlens, dim), batch_first=True, padding_value=fill, padding_side=side)
