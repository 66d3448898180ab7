"""Tensors as long as the last boundary says, beside rows that are longer: ``torch.zeros(cu[-1])``."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("cu", reads=1)
def ids_as_long_as_the_last(cu: Tensor) -> Tensor:
    ids = torch.zeros(cu[-1], dtype=torch.int32)
    for i, (s, e) in enumerate(zip(cu, cu[1:])):
        ids[s:e] = i
    return ids.unsqueeze(0)


@program("f[T,3] cu", reads=1)
def written_up_to_the_last(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros((cu[-1], 3))
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].cumsum(0)
    return out


@program("f[T,3] cu", reads=1, exact=False)
def new_up_to_an_entry_of_a_list(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    out = x.new_zeros(bounds[-1], 3)
    for s, e in zip(bounds, bounds[1:]):
        out[s:e] = x[s:e] - x[s:e].mean(0)
    return out


@program("f[T,3] i[N]", reads=1, tail=False, graphs=3)
def new_up_to_a_sum(x: Tensor, lengths: Tensor) -> Tensor:
    sizes = (lengths % 4).tolist()
    out = x.new_zeros(sum(sizes), 3)
    x = torch.cat([x, x.new_zeros(4 * len(sizes), 3)])
    start = 0
    for n in sizes:
        out[start : start + n] = x[start : start + n].flip(0)
        start += n
    return out


@program("f[T,3] cu", reads=1)
def longer_row_written(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out = x * 2
    y = x[: cu[-1]] * 3
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = y[s:e].flip(0) * x[s:e]
    return out, y


@program("f[T,3] cu", reads=1, mutates=True)
def input_written_beside_ids(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    ids = torch.zeros(cu[-1], dtype=torch.long)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        ids[s:e] = i
        x[s:e] = x[s:e] * i
    return x, ids


@program("f[2,T,3] cu", reads=1)
def last_of_a_batch(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    n = cu[-1].item()
    out, pos = x.new_zeros(2, n, 3), torch.zeros(n, dtype=torch.long)
    for i in range(cu.numel() - 1):
        s, e = cu[i].item(), cu[i + 1].item()
        out[:, s:e] = x[:, s:e].flip(1)
        pos[s:e] = torch.arange(e - s)
    return out, pos


@program("f[T,3] cu", reads=1, exact=False, depends=False)
def size_and_mean_of_the_longer_row(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu[-1], 3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e] * x.shape[0] + x.mean(0)
    return out


@program("f[T,3] cu", exact=False)
def two_slots_more(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.nn.functional.pad(x, (0, 0, 0, 2))
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = out[s:e] - x[s:e].mean(0)
    return out


@program("f[T,3] cu", reads=1, exact=False, tail=False)
def listed_beside_ids(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    ids, parts = torch.zeros(cu[-1]), []
    for i in range(len(cu) - 1):
        ids[cu[i] : cu[i + 1]] = i
        part = x[cu[i] : cu[i + 1]]
        parts.append(part - part.mean(0, keepdim=True))
    return torch.cat(parts), ids
