"""Loops that must be rewritten: tokens of every row of a batch are repeated, each by a number of its own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .harness import COUNTED, Shape, program

SOME = (*COUNTED, Shape(2, 17, "plain"))
ROWS = "f[N,6,3] i[N,6]"


def _few(x: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers from 0 to 3, and some of every row."""
    counts = numbers % 4
    counts[:, 0] = 1
    return x, counts


@program(ROWS, wrap=_few, shapes=SOME)
def regulated_and_padded(x: Tensor, durations: Tensor) -> Tensor:
    out = []
    for row, numbers in zip(x, durations):
        out.append(torch.repeat_interleave(row, numbers, dim=0))
    return pad_sequence(out, batch_first=True)


@program(ROWS, wrap=_few, shapes=SOME)
def regulated_and_joined(x: Tensor, durations: Tensor) -> Tensor:
    return torch.cat([row.repeat_interleave(numbers, 0) * 2 for row, numbers in zip(x, durations)])


@program(ROWS, wrap=_few, shapes=SOME, reads=1)
def regulated_with_their_lengths(x: Tensor, durations: Tensor) -> tuple[Tensor, Tensor]:
    out = [torch.repeat_interleave(row, numbers, dim=0) for row, numbers in zip(x, durations)]
    longest = max(part.size(0) for part in out)
    return torch.stack([F.pad(p, (0, 0, 0, longest - p.size(0))) for p in out]), torch.tensor([p.size(0) for p in out])


@program(ROWS, wrap=_few, shapes=SOME, exact=False)
def regulated_at_another_speed(x: Tensor, durations: Tensor) -> Tensor:
    out = []
    for row, numbers in zip(x, durations):
        out.append(row.repeat_interleave((numbers.float() * 1.5).round().long(), dim=0).mean(0))
    return torch.stack(out)


@program("f[N,6,3] f[N,6] i[N,6]", wrap=lambda x, y, n: (x, y, _few(x, n)[1]), shapes=SOME)
def two_fields_regulated(x: Tensor, pitch: Tensor, durations: Tensor) -> tuple[Tensor, Tensor]:
    frames, pitches = [], []
    for row, own, numbers in zip(x, pitch, durations):
        frames.append(torch.repeat_interleave(row, numbers, dim=0))
        pitches.append(torch.repeat_interleave(own, numbers, dim=0))
    return torch.cat(frames), pad_sequence(pitches, batch_first=True, padding_value=-1.0)


@program(ROWS, wrap=_few, shapes=SOME, reads=1)
def regulated_row_by_row_into_zeros(x: Tensor, durations: Tensor) -> Tensor:
    out = []
    for i in range(x.size(0)):
        out.append(x[i].repeat_interleave((durations[i].float() * 1.5).round().long(), dim=0))
    longest = max(part.shape[0] for part in out)
    padded = x.new_zeros(len(out), longest, x.size(-1))
    for i, part in enumerate(out):
        padded[i, : part.size(0)] = part
    return padded
