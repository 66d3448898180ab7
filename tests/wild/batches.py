"""Documents of the cases: four batches with other numbers and lengths of documents, and tensors of fixed numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.wild.case import Arguments

LENGTHS = ((5, 9), (3, 7, 2, 11), (64,) * 6, (100, 3, 30, 77, 12, 9, 50, 200))
"""Few, more of other lengths, equal ones, many."""


def boundaries(lengths: Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def floats(*shape: int, grad: bool = False, seed: int = 0) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return numbers.requires_grad_(grad)


def ids(*shape: int, high: int = 97, seed: int = 0) -> Tensor:
    return torch.randint(1, high, shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def positions(lengths: Sequence[int]) -> Tensor:
    """Position ids [1, T] that start at 0 in every document."""
    return torch.cat([torch.arange(n) for n in lengths])[None]


def mask(lengths: Sequence[int], side: str = "right") -> Tensor:
    """[B, S], true at tokens."""
    longest = max(lengths)
    slots = torch.arange(longest)
    return torch.stack([slots < n if side == "right" else slots >= longest - n for n in lengths])


def over(
    make: Callable[[Sequence[int]], Any], lengths: Sequence[Sequence[int]] = LENGTHS
) -> list[Callable[[], Arguments]]:
    """A batch for each of ``lengths``; ``make`` returns positional arguments, or ``(args, kwargs)``."""

    def one(documents: Sequence[int]) -> Callable[[], Arguments]:
        def batch() -> Arguments:
            made = make(documents)
            if isinstance(made, dict):
                return (), made
            if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], tuple) and isinstance(made[1], dict):
                return made
            return (made if isinstance(made, tuple) else (made,)), {}

        return batch

    return [one(documents) for documents in lengths]
