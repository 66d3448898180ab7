"""Look-alikes of convolutions over the slots of a document: other cuts, strides, neighbours of other documents."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import leave


@leave("d[1,4,T] d[4,1,3] cu", min_len=1, tail=False, exact=False)
def the_front_cut_off(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    """The other end: it reaches ahead."""
    parts = torch.split(x, (cu[1:] - cu[:-1]).tolist(), dim=2)
    return torch.cat([F.conv1d(part, weight, padding=2, groups=4)[..., 2:] for part in parts], dim=-1)


@leave("d[1,4,T] d[4,1,3] cu", min_len=1, tail=False, exact=False)
def a_slot_too_many(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    parts = torch.split(x, (cu[1:] - cu[:-1]).tolist(), dim=2)
    return torch.cat([F.conv1d(part, weight, padding=2, groups=4)[..., :-1] for part in parts], dim=-1)


@leave("d[1,4,T] d[4,1,3] cu", min_len=1, tail=False, exact=False)
def with_dilation(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    parts = torch.split(x, (cu[1:] - cu[:-1]).tolist(), dim=2)
    return torch.cat([F.conv1d(part, weight, padding=2, dilation=2, groups=4) for part in parts], dim=-1)


@leave("d[1,4,T] d[4,1,3] cu", min_len=1, tail=False, exact=False)
def every_other_slot(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    parts = torch.split(x, (cu[1:] - cu[:-1]).tolist(), dim=2)
    return torch.cat([F.conv1d(part, weight, padding=1, stride=2, groups=4) for part in parts], dim=-1)


@leave("d[1,4,T] d[4,2,3] cu", min_len=1, tail=False, exact=False)
def groups_of_two_channels(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    parts = torch.split(x, (cu[1:] - cu[:-1]).tolist(), dim=2)
    return torch.cat([F.conv1d(part, weight, padding=1, groups=2) for part in parts], dim=-1)


@leave("d[1,4,T] d[4,1,3] cu", min_len=1, tail=False, exact=False)
def padded_with_ones(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    parts = torch.split(x, (cu[1:] - cu[:-1]).tolist(), dim=2)
    return torch.cat([F.conv1d(F.pad(part, (2, 0), value=1.0), weight, groups=4) for part in parts], dim=-1)


@leave("d[1,4,T] d[4,1,2] cu", min_len=1, exact=False)
def one_slot_of_the_document_before(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[1:-1].tolist(), cu[2:].tolist()):
        out[..., s:e] = F.conv1d(x[..., s - 1 : e], weight, groups=4)
    return out


@leave("d[4,T,1] d[4,4,1] cu", min_len=1, exact=False)
def over_another_dimension(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    """Slots are channels here."""
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = F.conv1d(x[:, s:e].transpose(0, 1), weight).transpose(0, 1)
    return out


@leave("d[4,T] d[6,4,3] cu", min_len=2, tail=False, exact=False)
def slots_in_between_left_out(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    spans = zip(cu[:-1].tolist(), cu[1:].tolist())
    return torch.cat([F.conv1d(x[None, :, s:e], weight, dilation=2, padding=2)[0] for s, e in spans], -1)


@leave("d[4,T] d[6,4,4] cu", min_len=1, tail=False, exact=False)
def a_stride_beyond_the_end(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    spans = zip(cu[:-1].tolist(), cu[1:].tolist())
    return torch.cat([F.conv1d(x[None, :, s:e], weight, stride=2, padding=2)[0] for s, e in spans], -1)


@leave("d[2,4,T] d[6,4,3] cu", min_len=1, tail=False, exact=False)
def a_stride_along_two_rows(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    spans = zip(cu[:-1].tolist(), cu[1:].tolist())
    return torch.cat([F.conv1d(x[..., s:e], weight, stride=2, padding=1) + 1 for s, e in spans], -1)


@leave("d[4,T] d[6,4,3] cu", min_len=1, tail=False, exact=False)
def strided_and_its_neighbour(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        hidden = F.conv1d(x[None, :, s:e], weight, stride=2, padding=1)[0]
        parts.append(hidden - hidden.mean(-1, keepdim=True))
    return torch.cat(parts, -1)
