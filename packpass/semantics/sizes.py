"""Fake tensors again, under symbols of an environment of their own: equal sizes stay equal, nothing else is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from packpass._compat import fake_mode_of

_WORDS = """
    arange linspace zeros ones full empty reshape unflatten tile broadcast_to narrow repeat_interleave expand repeat
    view new_zeros new_ones new_full new_empty interpolate
    """
TAKING_SIZES = frozenset(_WORDS.split())
"""Operations that read their sizes from tensors of one integer, too."""
OF_SIZES_ALONE = frozenset(["expand", "repeat", "reshape", "view", "new_zeros", "new_ones", "new_empty"])
"""Methods of tensors that are given sizes, alone or as one tuple."""
DISTINCT = frozenset(["unique", "unique_consecutive"])
"""Operations that give distinct values: at least one, if they are given any."""
OF_MEMORY = frozenset(["stride", "is_contiguous", "storage_offset"])
"""Methods that say how a tensor lies in memory, which torch answers while it traces."""


class Renamed:
    """Sizes and fake tensors of one environment in another."""

    def __init__(self, size: Callable[[int], Any], grads: bool) -> None:
        """``size(least)`` makes a symbol; ``grads``: do the new tensors require the gradients that the old ones do?"""
        self.size, self.grads = size, grads
        self.known: list[tuple[Any, Any]] = []
        """Old expression, new number."""
        self.old: list[tuple[Any, Any]] = []
        """New symbol, old number."""

    def number(self, value: Any, least: int = 0) -> Any:
        """A size, a stride or an argument; at least so large."""
        if not isinstance(value, torch.SymInt):
            return value
        expression = value.node.expr
        if not expression.free_symbols:
            return int(expression)
        for other, made in self.known:
            difference = expression - other
            if not difference.free_symbols:
                return made + int(difference)
        made = self.size(least)
        self.known.append((expression, made))
        self.old.append((made, value))
        return made

    def one(self, sizes: Sequence[Any], least: int = 0) -> None:
        """These sizes are equal, whatever expressions they are, and at least so large."""
        unknown = [s for s in sizes if isinstance(s, torch.SymInt)]
        if unknown:
            made = self.number(unknown[0], least)
            self.known += [(size.node.expr, made) for size in unknown[1:]]

    def operand(self, value: Any) -> Any:
        """A tensor or a number; `ValueError` for anything that is neither."""
        if isinstance(value, torch.SymInt):
            return self.number(value)
        if not isinstance(value, torch.Tensor) or fake_mode_of(value) is None or value.layout != torch.strided:
            raise ValueError(f"an operand is a {type(value).__name__}")
        if value.is_conj() or value.is_neg():
            raise ValueError("an operand is a view that conjugates or negates")
        sizes, strides = ([self.number(s) for s in sizes] for sizes in (value.shape, value.stride()))
        made = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
        return made.requires_grad_(self.grads and value.requires_grad)
