"""Loops that must be rewritten: convolutions over the slots of each document."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


@program("d[1,4,T] d[4,1,3] d[4] cu", min_len=1, tail=False, exact=False)
def depthwise_with_padding_cut_off(x: Tensor, weight: Tensor, bias: Tensor, cu: Tensor) -> Tensor:
    """Short convolutions of state space models, the reference way."""
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[:, :, s:e]
        outs.append(F.silu(F.conv1d(part, weight, bias, padding=2, groups=4)[..., : e - s]))
    return torch.cat(outs, dim=-1)


@program("d[T,4] d[4,1,4] cu", min_len=1, exact=False)
def depthwise_behind_a_pad(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]].transpose(0, 1).unsqueeze(0)
        out[cu[i] : cu[i + 1]] = F.conv1d(F.pad(part, (3, 0)), weight, groups=4).squeeze(0).transpose(0, 1)
    return out


@program("d[1,4,T] d[6,4,3] d[6] cu", min_len=1, tail=False, exact=False)
def dense_with_both_neighbours(x: Tensor, weight: Tensor, bias: Tensor, cu: Tensor) -> Tensor:
    outs = [F.conv1d(part, weight, bias, padding=1) for part in torch.split(x, (cu[1:] - cu[:-1]).tolist(), dim=2)]
    return torch.cat(outs, dim=2)


@program("d[T,4] d[6,4,3] d[6] cu", min_len=1, tail=False, exact=False)
def downsampled_by_a_stride(x: Tensor, weight: Tensor, bias: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for part in x.split(cu.diff().tolist(), dim=0):
        outs.append(F.gelu(F.conv1d(part.t().unsqueeze(0), weight, bias, stride=2, padding=1)).squeeze(0).t())
    return torch.cat(outs, 0)


@program("d[T,4] d[6,4,3] d[5,6,3] cu", min_len=1, tail=False, exact=False)
def frontend_of_two_convolutions(x: Tensor, first: Tensor, second: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    outs, lengths = [], []
    for part in x.split(cu.diff().tolist(), dim=0):
        hidden = F.gelu(F.conv1d(part.t().unsqueeze(0), first, padding=1))
        hidden = F.gelu(F.conv1d(hidden, second, stride=2, padding=1))
        outs.append(hidden.squeeze(0).t())
        lengths.append(hidden.shape[-1])
    return torch.cat(outs, 0), torch.tensor(lengths)


@program("d[4,T] d[6,4,2] cu", min_len=2, tail=False, exact=False)
def without_padding(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    spans = zip(cu[:-1].tolist(), cu[1:].tolist())
    return torch.cat([F.conv1d(x[None, :, s:e], weight)[0] for s, e in spans], -1)


@program("d[4,T] d[4,1,2] d[4] cu", min_len=2, tail=False, exact=False)
def depthwise_by_a_stride(x: Tensor, weight: Tensor, bias: Tensor, cu: Tensor) -> Tensor:
    spans = zip(cu[:-1].tolist(), cu[1:].tolist())
    return torch.stack([F.conv1d(x[None, :, s:e], weight, bias, stride=3, groups=4)[0].sum(-1) for s, e in spans])
