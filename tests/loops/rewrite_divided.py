"""Loops that must be rewritten: they do several things, each to documents of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import Args, program


def _prompts(x: Tensor, cu: Tensor) -> Args:
    lengths = cu.diff() % 9
    return x, lengths // 2, lengths


def _two_rows(x: Tensor, y: Tensor, cu: Tensor) -> Args:
    return x, torch.cat([y, y * 0.5]), cu, cu * 2


@program("f[N,9,3] cu", wrap=_prompts, depends=False, tail=False)
def prompts_and_what_is_behind(x: Tensor, prompts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    text, image = torch.zeros(x.shape[0], 9, 3), torch.zeros(x.shape[0], 9, 3)
    for i, (a, n) in enumerate(zip(prompts.tolist(), lengths.tolist())):
        text[i, :a] = x[i, :a]
        image[i, : n - a] = x[i, a:n]
    return text, image


@program("f[N,9] cu", wrap=_prompts, depends=False, tail=False)
def masks_of_both_ends(x: Tensor, prompts: Tensor, lengths: Tensor) -> Tensor:
    masks = torch.ones_like(x)
    for i in range(len(prompts)):
        start = prompts[i].item()
        end = start + (lengths[i] - prompts[i]).item()
        masks[i, :start] = 0
        masks[i, end:] = 0
    return x * masks


@program("f[N,9] cu", wrap=_prompts, depends=False, tail=False)
def parts_of_a_row_that_overlap(x: Tensor, prompts: Tensor, lengths: Tensor) -> Tensor:
    out = x * 2
    for i, (a, n) in enumerate(zip(prompts.tolist(), lengths.tolist())):
        out[i, :n] = 1
        out[i, a:n] += x[i, a:n]
        out[i, :a] *= 3
    return out


@program("f[N,9] cu", wrap=_prompts, depends=False, tail=False, exact=False)
def sums_before_and_after_a_write(x: Tensor, prompts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out, before, after = x * 2, [], []
    for i, (a, n) in enumerate(zip(prompts.tolist(), lengths.tolist())):
        total = out[i, :n].sum()
        out[i, :a] = 0
        before.append(total)
        after.append(out[i, :n].sum())
    return out, torch.stack(before), torch.stack(after)


@program("f[N,9,3] cu", wrap=_prompts, depends=False, tail=False, exact=False)
def lists_of_two_kinds(x: Tensor, prompts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    text, image = [], []
    for i, (a, n) in enumerate(zip(prompts.tolist(), lengths.tolist())):
        text.append(x[i, :a].sum(0))
        image.append(x[i, a:n] * 2)
    return torch.stack(text), torch.cat(image)


@program("f[T,3] f[T,3] cu", wrap=_two_rows, depends=False, tail=False)
def rows_of_one_and_of_two(x: Tensor, y: Tensor, cu: Tensor, cv: Tensor) -> tuple[Tensor, Tensor]:
    one, other = torch.zeros_like(x), torch.zeros_like(y)
    for i in range(len(cu) - 1):
        one[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0)
        other[cv[i] : cv[i + 1]] = y[cv[i] : cv[i + 1]] * 2
    return one, other


@program("f[N,9] f[N,9] cu", wrap=lambda x, y, cu: (x, y, cu.diff() % 9), depends=False, tail=False)
def two_tensors_in_turn(x: Tensor, y: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    one, other = x * 2, y * 3
    for i, n in enumerate(lengths.tolist()):
        one[i, : n // 2] = other[i, : n // 2]
        other[i, :n] = one[i, :n]
    return one, other
