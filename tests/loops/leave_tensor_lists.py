"""Look-alikes of documents that a program is given as a list of tensors."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from .harness import leave
from .rewrite_tensor_lists import split

listed: Any = functools.partial(leave, "f[T,3] cu", wrap=split, tail=False, min_len=1)


def written(x: Tensor, cu: Tensor) -> tuple[list[Tensor]]:
    return ([part.detach().clone() for part in split(x, cu)[0]],)


@leave("f[T,3] cu", wrap=written, tail=False, min_len=1, mutates=True, must_refuse=True, why="the caller's tensors are")
def parts_are_written_to(parts: list[Tensor]) -> Tensor:
    for part in parts:
        part[0] = 1.0
    return torch.cat(parts)


@leave("f[T,3] cu", wrap=written, tail=False, min_len=1, mutates=True, must_refuse=True, why="the caller's tensors are")
def parts_are_scaled(parts: list[Tensor]) -> Tensor:
    out = torch.stack([part.sum(0) for part in parts])
    for part in parts:
        part.mul_(2)
    return out


@listed(must_refuse=True, why="the caller gets its own tensor back")
def the_first_as_it_is(parts: list[Tensor]) -> Any:
    return parts[0], torch.cat([part * 2 for part in parts])


@listed(must_refuse=True, why="the caller gets parts of its own tensors back")
def parts_of_the_callers(parts: list[Tensor]) -> list[Tensor]:
    return [part[1:] for part in parts]


@listed()
def the_list_itself(parts: list[Tensor]) -> Any:
    return parts, torch.cat([part * 2 for part in parts])


@listed(must_refuse=True, why="the caller sees what is added to its list", mutates=True)
def a_list_that_grows(parts: list[Tensor]) -> Tensor:
    parts.append(parts[0] * 2)
    return torch.cat([part * 3 for part in parts])


def mixed(x: Tensor, cu: Tensor) -> tuple[list[Tensor]]:
    return ([part.double() if i else part for i, part in enumerate(split(x, cu)[0])],)


@leave("f[T,3] cu", wrap=mixed, tail=False, min_len=1)
def several_dtypes(parts: list[Tensor]) -> Tensor:
    return torch.stack([part.sum(0).float() for part in parts])


@leave("f[T,3] cu", wrap=lambda x, cu: ([x[:-1].clone(), x.clone(), torch.cat([x, x])],))
class LevelsOfFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, levels: list[Tensor]) -> Tensor:
        return sum((layer(level).sum(0) for layer, level in zip(self.layers, levels)), torch.zeros(3))


def other_lengths(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    parts = split(x, cu)[0]
    return parts, [part[:1].clone() if i % 2 else part.clone() for i, part in enumerate(parts)]


@leave("f[T,3] cu", wrap=other_lengths, tail=False, min_len=1)
def lists_of_other_lengths(parts: list[Tensor], more: list[Tensor]) -> Tensor:
    return torch.cat([part * other for part, other in zip(parts, more)])


def alike(x: Tensor, cu: Tensor) -> tuple[list[Tensor]]:
    return ([part.detach().sum(0) for part in split(x, cu)[0]],)


@leave("f[T,3] cu", wrap=alike, tail=False, min_len=1, mutates=True)
def pooled_values_are_written_to(pooled: list[Tensor]) -> Tensor:
    for value in pooled:
        value += 1
    return torch.stack(pooled)


@leave("f[T,3] cu", wrap=alike, tail=False, min_len=1)
def a_pooled_value_as_it_is(pooled: list[Tensor]) -> Any:
    return pooled[-1], torch.stack([value * 2 for value in pooled])


def sometimes_alike(x: Tensor, cu: Tensor) -> tuple[list[Tensor]]:
    """Of one shape in some batches, rows of several lengths in others, and longer in others again."""
    parts = split(x, cu)[0]
    if len(parts) % 2:
        return ([part[:1] for part in parts],)
    return ([part.repeat(2, 1) if len(parts) % 4 else part[:1].repeat(3, 1) for part in parts],)


@leave("f[T,3] cu", wrap=sometimes_alike, tail=False, min_len=1)
def of_one_shape_in_some_batches(parts: list[Tensor]) -> Tensor:
    return torch.cat([part * 2 for part in parts])


def pooled_with_a_gradient(x: Tensor, cu: Tensor) -> tuple[list[Tensor], Tensor]:
    return [part.sum(0) for part in split(x, cu)[0]], x


@leave("f[T,3] cu", wrap=pooled_with_a_gradient, tail=False, min_len=1)
def all_but_the_first_pooled_value(pooled: list[Tensor], x: Tensor) -> Tensor:
    """The first has no gradient in eager, which a row of them would give it."""
    total = x.sum()
    for value in pooled[1:]:
        total = total + value.square().sum()
    return total
