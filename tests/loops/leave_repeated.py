"""Look-alikes of rows whose tokens are repeated by numbers of their own: other rows, numbers, and dimensions."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave
from .rewrite_repeated import ROWS, SOME, _few


@leave(ROWS, wrap=_few, shapes=SOME)
def repeated_by_numbers_of_the_first_row(x: Tensor, durations: Tensor) -> Tensor:
    return torch.cat([row.repeat_interleave(durations[0], 0) for row, _ in zip(x, durations)])


@leave(ROWS, wrap=_few, shapes=SOME)
def numbers_that_are_written_in_the_loop(x: Tensor, durations: Tensor) -> Tensor:
    durations, out = durations.clone(), []
    for row, numbers in zip(x, durations):
        out.append(row.repeat_interleave(numbers, 0))
        durations += 1
    return torch.cat(out)


@leave(ROWS, wrap=_few, shapes=SOME)
def rows_that_are_written_in_the_loop(x: Tensor, durations: Tensor) -> Tensor:
    x, out = x.detach().clone(), []
    for row, numbers in zip(x, durations):
        out.append(row.repeat_interleave(numbers, 0))
        x *= 2
    return torch.cat(out)


@leave("f[N,6,6] i[N,6]", wrap=_few, shapes=SOME)
def features_that_are_repeated(x: Tensor, durations: Tensor) -> Tensor:
    return torch.stack([row.repeat_interleave(numbers, 1).sum(1) for row, numbers in zip(x, durations)])


@leave("f[N,6] i[N,6]", wrap=_few, shapes=SOME)
def repeated_by_running_sums(x: Tensor, durations: Tensor) -> Tensor:
    return torch.cat([row.repeat_interleave(numbers.cumsum(0), 0) for row, numbers in zip(x, durations)])


@leave(ROWS, wrap=_few, shapes=SOME)
def what_is_repeated_is_written(x: Tensor, durations: Tensor) -> Tensor:
    out = []
    for row, numbers in zip(x, durations):
        part = row.repeat_interleave(numbers, 0)
        part[0] = 0
        out.append(part)
    return torch.cat(out)


@leave(ROWS, wrap=lambda x, n: (x, torch.cat([_few(x, n)[1], n[:1] % 3])), shapes=SOME)
def numbers_of_more_rows(x: Tensor, durations: Tensor) -> Tensor:
    return torch.cat([x[i].repeat_interleave(durations[i], dim=0) for i in range(x.size(0))])


@leave(ROWS, wrap=lambda x, n: (x, _few(x, n)[1][:, :1] + 1), shapes=SOME)
def one_number_for_every_token(x: Tensor, durations: Tensor) -> Tensor:
    return torch.cat([x[i].repeat_interleave(durations[i], dim=0) for i in range(x.size(0))])


@leave("f[T,3] i[T] cu", wrap=lambda x, n, cu: (x, n % 3, cu))
def parts_of_a_packed_row(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    parts = [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x[s:e].repeat_interleave(numbers[s:e], dim=0))
    return torch.cat(parts)
