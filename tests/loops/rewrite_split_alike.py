"""Two rows that are split by the same lengths: what asks whether both parts have one size is told that they have."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .harness import program


@program("f[T] f[T] cu", min_len=1, tail=False, exact=False)
def losses_of_parts(x, y, cu):
    lengths = cu.diff().tolist()
    losses = [F.mse_loss(a, b) for a, b in zip(x.split(lengths), y.split(lengths))]
    return torch.stack(losses).sum()


@program("f[T,2] f[T,2] cu", min_len=1, tail=False, exact=False)
def losses_of_parts_by_two_lists(x, y, cu):
    lengths = cu.diff()
    total = x.new_zeros(())
    for a, b in zip(x.split(lengths.tolist()), y.split(lengths.tolist())):
        total = total + F.binary_cross_entropy(torch.sigmoid(a), b.detach().clamp(0, 1)) * len(a)
    return total


@program("f[T] f[T] cu", min_len=1, tail=False)
def parts_of_one_size(x, y, cu):
    lengths = cu.diff()
    parts = []
    for a, b in zip(x.split(lengths.tolist()), y.split(lengths.clone().tolist())):
        if a.size() != b.size():
            raise ValueError("the parts differ")
        parts.append(a * b.flip(0))
    return torch.cat(parts)


@program("f[2,T] f[T] cu", min_len=1, tail=False, exact=False)
def losses_along_other_dimensions(x, y, cu):
    lengths = cu.diff().tolist()
    losses = [
        F.smooth_l1_loss(a[0], b) for a, b in zip(x.split(lengths, dim=-1), torch.split(y, lengths))
    ]
    return torch.stack(losses).mean()
