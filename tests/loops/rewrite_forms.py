"""Loops that must be rewritten: the ways people spell "for every document" and where they keep the boundaries."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .harness import program

# ---------------------------------------------------------------- range over the boundaries


@program("f[2,T] cu")
def range_len(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        seg = torch.roll(x[..., s:e], -1, -1)
        seg[..., -1:] = 0
        out[..., s:e] = seg
    return out


@program("i[T] cu64")
def range_shape0(ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    labels = ids.clone()
    for i in range(cu_seqlens.shape[0] - 1):
        start = cu_seqlens[i]
        end = cu_seqlens[i + 1]
        piece = ids[start:end].roll(-1)
        piece[-1:] = -100
        labels[start:end] = piece
    return labels


@program("f[T,4] cu")
def range_numel(x: Tensor, cu: Tensor) -> Tensor:
    result = torch.zeros_like(x)
    num_docs = cu.numel() - 1
    for doc in range(num_docs):
        lo, hi = int(cu[doc]), int(cu[doc + 1])
        result[lo:hi] = x[lo:hi].roll(1, 0)
    return result


@program("f[2,T,3] cu64")
def range_size0(h: Tensor, cu: Tensor) -> Tensor:
    out = h.clone()
    n = cu.size(0) - 1
    for b in range(n):
        s = cu[b].item()
        e = cu[b + 1].item()
        out[:, s:e, :] = torch.flip(h[:, s:e, :], dims=[1])
    return out


@program("i[1,T] cu")
def range_from_one(ids: Tensor, cu: Tensor) -> Tensor:
    pos = torch.zeros_like(ids)
    for i in range(1, len(cu)):
        pos[:, cu[i - 1] : cu[i]] = torch.arange(cu[i] - cu[i - 1])
    return pos


@program("f[T] cu", depends=False, demand=False)  # slices the boundaries themselves: runs as in stock torch
def range_zero_to_n_step_one(x: Tensor, cu: Tensor) -> Tensor:
    y = x.clone()
    for j in range(0, cu.shape[0] - 1, 1):
        a, b = cu[j : j + 2]
        y[a:b] = x[a:b] * 2 + 1
    return y


@program("f[2,T] cu")
def range_len_of_view(x: Tensor, cu: Tensor) -> Tensor:
    starts, ends = cu[:-1], cu[1:]
    out = torch.zeros_like(x)
    for k in range(len(ends)):
        out[:, starts[k] : ends[k]] = x[:, starts[k] : ends[k]].roll(shifts=1, dims=1)
    return out


@program("f[2,T] cu")
def range_len_of_lengths(x: Tensor, cu: Tensor) -> Tensor:
    lens = cu[1:] - cu[:-1]
    out = x.clone()
    for k in range(len(lens)):
        out[:, cu[k] : cu[k] + lens[k]] = x[:, cu[k] : cu[k] + lens[k]].flip(-1)
    return out


@program("f[2,T] cu")
def slice_objects(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.empty_like(x).copy_(x)
    for i in range(len(cu) - 1):
        doc = (..., slice(cu[i], cu[i + 1]))
        out[doc] = x[doc].roll(-2, -1)
    return out


# ---------------------------------------------------------------- zip and enumerate


@program("f[2,T] cu")
def zip_views(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        rolled = x[:, s:e].roll(-1, dims=-1)
        rolled[:, -1:].zero_()
        out[:, s:e] = rolled
    return out


@program("i[T] cu")
def zip_views_item(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1], cu[1:], strict=True):
        s, e = s.item(), e.item()
        out[s:e] = ids[s:e].flip(0)
    return out


@program("f[T,2,3] cu64")
def zip_tolist_slices(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e].roll(1, dims=0)
    return out


@program("f[2,T] cu")
def list_pairs(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    out = x.clone()
    for s, e in zip(bounds[:-1], bounds[1:]):
        out[..., s:e] = torch.flip(x[..., s:e], [-1])
    return out


@program("f[2,T] cu", demand=False)
def list_pairs_uneven_zip(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    out = x.clone()
    for s, e in zip(bounds, bounds[1:]):
        out[..., s:e] = torch.flip(x[..., s:e], [-1])
    return out


@program("f[2,T] cu", demand=False)
def pairwise(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in itertools.pairwise(cu.tolist()):
        out[..., s:e] = x[..., s:e].roll(1, -1)
    return out


@program("f[2,T] cu", depends=False)
def list_range(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    out = x.clone()
    for i in range(len(bounds) - 1):
        out[:, bounds[i] : bounds[i + 1]] = x[:, bounds[i] : bounds[i + 1]].clamp(min=0)
    return out


@program("f[2,T] cu")
def enumerate_zip(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for _i, (s, e) in enumerate(zip(cu[:-1], cu[1:])):
        r = torch.roll(x[:, s:e], shifts=-1, dims=1)
        r[:, -1:] = -1
        out[:, s:e] = r
    return out


@program("i[2,T] cu")
def enumerate_starts(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for i, start in enumerate(cu[:-1]):
        end = cu[i + 1]
        out[:, start:end] = torch.roll(ids[:, start:end], -1, 1)
    return out


@program("f[2,T] cu", depends=False)
def pairs_of_stacked_bounds(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    starts = cu[:-1].tolist()
    ends = cu[1:].tolist()
    for i in range(len(starts)):
        out[:, starts[i] : ends[i]] = x[:, starts[i] : ends[i]] + 1
    return out


# ---------------------------------------------------------------- split, comprehensions, map


@program("f[2,T] cu", tail=False)
def diff_split_cat(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for seg in torch.split(x, cu.diff().tolist(), dim=-1):
        parts.append(seg.roll(1, -1))
    return torch.cat(parts, dim=-1)


@program("i[T] cu64", tail=False)
def sub_split_comprehension(ids: Tensor, cu: Tensor) -> Tensor:
    lens = (cu[1:] - cu[:-1]).tolist()
    return torch.cat([seg.flip(0) for seg in ids.split(lens)])


@program("f[T,4] cu", tail=False)
def split_map(x: Tensor, cu: Tensor) -> Tensor:
    def shift(seg: Tensor) -> Tensor:
        return torch.roll(seg, 1, 0)

    return torch.cat(list(map(shift, torch.split(x, (cu[1:] - cu[:-1]).tolist()))))


@program("f[2,T] cu", tail=False)
def comprehension_over_range(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[:, cu[i] : cu[i + 1]].roll(-1, 1) for i in range(len(cu) - 1)], dim=1)


@program("f[2,T] cu", tail=False)
def comprehension_over_zip(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[:, s:e].flip(1) for s, e in zip(cu[:-1], cu[1:])], -1)


@program("f[T,3] cu", tail=False)
def append_then_cat(x: Tensor, cu: Tensor) -> Tensor:
    chunks: list[Tensor] = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        chunk = x[s:e]
        chunks.append(torch.roll(chunk, -1, 0) - chunk)
    return torch.cat(chunks, dim=0)


# ---------------------------------------------------------------- helpers, methods, closures


def _shift_one(seg: Tensor) -> Tensor:
    shifted = seg.roll(-1, -1)
    shifted[..., -1:] = 0
    return shifted


def _shift_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[..., cu[i] : cu[i + 1]] = _shift_one(x[..., cu[i] : cu[i + 1]])
    return out


@program("f[2,T] cu", where=(_shift_one,))
def helper_per_document(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[..., s:e] = _shift_one(x[..., s:e])
    return out


@program("f[2,T] cu", where=(_shift_documents, _shift_one))
def helper_with_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    return _shift_documents(x * 2, cu) + x


@program("f[2,T] cu", tail=False)
def closure_and_lambda(x: Tensor, cu: Tensor) -> Tensor:
    shift = -1
    move = lambda seg: torch.roll(seg, shift, -1)  # noqa: E731
    return torch.cat([move(x[:, s:e]) for s, e in zip(cu[:-1], cu[1:])], -1)


def _make_shifter(shift: int, fill: int) -> Callable[[Tensor], Tensor]:
    def run(seg: Tensor) -> Tensor:
        y = seg.roll(shift, 0)
        y[:shift] = fill
        return y

    return run


@program("i[T] cu", where=(_make_shifter,))
def closure_factory(ids: Tensor, cu: Tensor) -> Tensor:
    run = _make_shifter(2, -7)
    out = ids.clone()
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = run(ids[cu[i] : cu[i + 1]])
    return out


@program("f[2,T] cu")
def partial_roll(x: Tensor, cu: Tensor) -> Tensor:
    back = functools.partial(torch.roll, shifts=1, dims=-1)
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = back(x[:, cu[i] : cu[i + 1]])
    return out


@program("f[2,T] cu")
class ModuleForward(nn.Module):
    """The loop in a forward, with a constant attribute and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.fill = 0.5
        self.scale = nn.Parameter(torch.tensor([[2.0], [0.5]]))

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        out = x.clone()
        for i in range(len(cu_seqlens) - 1):
            s, e = cu_seqlens[i], cu_seqlens[i + 1]
            seg = (x[:, s:e] * self.scale).roll(-1, -1)
            seg[:, -1:] = self.fill
            out[:, s:e] = seg
        return out


@program("i[2,T] cu")
class ModuleMethods(nn.Module):
    """The body in a method, the bounds in a property-like method."""

    def bounds(self, cu: Tensor, i: int) -> tuple[Tensor, Tensor]:
        return cu[i], cu[i + 1]

    def move(self, seg: Tensor) -> Tensor:
        seg = torch.roll(seg, 1, -1)
        seg[:, :1] = 3
        return seg

    def forward(self, ids: Tensor, cu: Tensor) -> Tensor:
        out = torch.full_like(ids, -1)
        for i in range(cu.numel() - 1):
            s, e = self.bounds(cu, i)
            out[:, s:e] = self.move(ids[:, s:e])
        return out


# ---------------------------------------------------------------- where the boundaries live


@dataclass
class Packed:
    """Boundaries in a dataclass with a derived count."""

    cu_seqlens: Tensor
    max_seqlen: int = 0

    @property
    def num_docs(self) -> int:
        return len(self.cu_seqlens) - 1


class Bounds(NamedTuple):
    """Boundaries in a named tuple."""

    cu: Tensor
    name: str


@program("f[2,T] cu", wrap=lambda x, cu: (x, Packed(cu)), where=(Packed,))
def in_dataclass(x: Tensor, packed: Packed) -> Tensor:
    out = x.clone()
    for i in range(packed.num_docs):
        s, e = packed.cu_seqlens[i], packed.cu_seqlens[i + 1]
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out


@program("f[2,T] cu", wrap=lambda x, cu: ({"x": x, "cu_seqlens": cu},))
def in_dict(batch: dict[str, Tensor]) -> Tensor:
    x, cu = batch["x"], batch["cu_seqlens"]
    out = torch.zeros_like(x)
    for i in range(batch["cu_seqlens"].shape[0] - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].flip(1)
    return out


@program("f[2,T] cu", wrap=lambda x, cu: (x, Bounds(cu, "docs")))
def in_named_tuple(x: Tensor, bounds: Bounds) -> Tensor:
    out = x.clone()
    for s, e in zip(bounds.cu[:-1], bounds.cu[1:]):
        out[:, s:e] = x[:, s:e].roll(2, -1)
    return out


@program("i[T] cu", wrap=lambda x, cu: (x, SimpleNamespace(cu_seqlens_q=cu, qkv_format="thd")))
def in_namespace(ids: Tensor, params: Any) -> Tensor:
    out = ids.clone()
    for i in range(len(params.cu_seqlens_q) - 1):
        a, b = params.cu_seqlens_q[i], params.cu_seqlens_q[i + 1]
        r = torch.roll(ids[a:b], shifts=-1, dims=0)
        r[-1:] = 0
        out[a:b] = r
    return out


@program("f[2,T] cu", wrap=lambda x, cu: (x, [cu, None]))
def in_list_with_cast(x: Tensor, meta: list[Tensor | None]) -> Tensor:
    cu = meta[0]
    assert cu is not None
    cu = cu.long()
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@program("f[2,T] cu", depends=False)
def cpu_tolist(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.cpu().tolist()
    out = x.clone()
    for s, e in zip(bounds[:-1], bounds[1:]):
        out[:, s:e] = x[:, s:e] * 0.5
    return out


@program("f[2,T] cu")
def optional_boundaries(x: Tensor, cu: Tensor | None = None, *, shift: int = -1) -> Tensor:
    if cu is None:
        return torch.roll(x, shift, -1)
    if x.dim() != 2:
        raise ValueError("need [B, T]")
    out = x.clone()
    for i in range(len(cu) - 1):
        out[..., cu[i] : cu[i + 1]] = torch.roll(x[..., cu[i] : cu[i + 1]], shift, -1)
    return out


@program("f[2,T] cu")
@torch.no_grad()
def under_no_grad(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[..., cu[i] : cu[i + 1]] = torch.roll(x[..., cu[i] : cu[i + 1]], 1, -1)
    return out


@program("f[2,T] cu", tail=False)
def running_start(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    start = 0
    for length in cu.diff().tolist():
        out[:, start : start + length] = x[:, start : start + length].flip(-1)
        start += length
    return out


# ---------------------------------------------------------------- another tensor's dtype and device


@program("f[T,3] f[3] cu", tail=False)
def row_behind_each_in_the_dtype_of_the_document(x: Tensor, row: Tensor, cu: Tensor) -> Tensor:
    parts = [x[s:e] for s, e in zip(cu[:-1], cu[1:])]
    return torch.cat([torch.cat([part, row[None].to(part)]) for part in parts])


@program("f[T,3] f[3] cu", tail=False, exact=False)
def dtypes_of_sums_and_of_scores(x: Tensor, row: Tensor, cu: Tensor) -> Any:
    parts, sums = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        scores = 0.1 * x[s:e] @ x[s:e].t()
        parts.append(scores.softmax(-1) @ x[s:e].double().to(scores) + row.double().type_as(scores))
        sums.append(row.to(x[s:e].sum(0)) + x[s:e].sum(0))
    return torch.cat(parts), torch.stack(sums)


@program("f[T,3] f[3] cu", depends=False)
def row_written_in_the_dtype_of_the_document(x: Tensor, row: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = row.double().to(out[s:e])
    return out
