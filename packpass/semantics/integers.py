"""What a call computes from whole numbers that are sums of things counted: boundaries, lengths, numbers of chunks.

What is counted, and when a quotient is such a sum again, is a domain's own; what the calls mean is the same for all.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import fx

from packpass.semantics.binding import example
from packpass.semantics.effects import AS_NUMBERS
from packpass.semantics.memory import copied
from packpass.semantics.names import base_name, op_name
from packpass.semantics.pointwise import COMPARISONS, whole_divisor

SMALL = 1 << 8
"""By numbers up to it, what boundaries of 32 bits hold may be multiplied in 32 bits: rows are not as long."""
ROW_BITS, SIDE_BITS = 24, 16
"""So many bits hold what products are made of: documents of no more than 16 million tokens, images whose sides have no
more than 65,536 patches each."""


ROUNDING = {
    "sym_int": "trunc",
    "math.trunc": "trunc",
    "math.floor": "floor",
    "math.ceil": "ceil",
    "builtins.round": "round",
    "__round__": "round",
}
"""What makes a whole number of a float, by the function of torch that rounds as it does."""


class Sum(Protocol):
    """Of things counted and a constant."""

    def plus(self: S, other: S, sign: int = 1, /) -> S: ...

    def times(self: S, factor: int, /) -> S: ...

    @property
    def number(self) -> int | None:
        """The constant that this is."""


S = TypeVar("S", bound=Sum)
C = TypeVar("C", bound="Counts")


class Counts:
    """Base of sums that are dataclasses: every field says how often something is counted, ``const`` is the constant."""

    def plus(self: C, other: C, sign: int = 1) -> C:
        """The sum, or the difference."""
        return type(self)(*(a + sign * b for a, b in zip(_parts(self), _parts(other), strict=True)))

    def times(self: C, factor: int) -> C:
        """The product with a number."""
        return type(self)(*(factor * part for part in _parts(self)))


def _parts(counts: Any) -> tuple[Any, ...]:
    return tuple(getattr(counts, field.name) for field in dataclasses.fields(counts))


@dataclasses.dataclass(frozen=True)
class Comparison:
    """``difference <op> 0``, with one of `COMPARISONS`."""

    op: str
    difference: Any


def computed(node: fx.Node, known: Callable[[Any], S | None], divided: Callable[[str, S, int], S | None]) -> Any:
    """What a call makes of numbers: a sum, a `Comparison`, or None if it is no such number.

    ``known(argument)`` is the sum that an argument is, a tensor of one integer among them; ``divided("floor_divide" or
    "remainder", sum, n)`` what division by a positive number leaves, rounded down, if that is a sum.
    """
    source = copied(node)
    if source is not None:
        return known(source) if _holds(node, source) else None
    name = op_name(node)
    if not isinstance(example(node), torch.Tensor):
        name = base_name(name)  # numbers are not written, whatever the spelling
    given: Any = node.args[0] if name == "sym_sum" else node.args
    sums = [known(arg) for arg in given]
    found = [one for one in sums if one is not None]
    if not found or len(found) < len(sums):
        return None
    if name == "sym_sum":
        return functools.reduce(lambda a, b: a.plus(b), found)
    if len(found) == 1:
        return found[0].times(-1) if name == "neg" else found[0] if name in AS_NUMBERS else None
    return _of_two(node, name, found[0], found[1], divided) if len(found) == 2 else None


def _holds(copy: fx.Node, source: fx.Node) -> bool:
    """Does a copy of an integer hold it, whatever it is?"""
    taken, given = example(copy), example(source)
    return not isinstance(taken, torch.Tensor) or taken.dtype in (torch.int64, getattr(given, "dtype", None))


def _of_two(node: fx.Node, name: str, a: S, b: S, divided: Callable[[str, S, int], S | None]) -> Any:
    divisor = whole_divisor(node, b.number, rounds_down=True)
    if divisor is not None:
        return divided("floor_divide", a, divisor)
    if node.kwargs:  # torch.add(a, b, alpha=2)
        return None
    if name in ("add", "sub"):
        return a.plus(b, 1 if name == "add" else -1)
    if name == "mul":
        return a.times(b.number) if b.number is not None else b.times(a.number) if a.number is not None else None
    if name == "remainder" and b.number is not None and b.number > 0:
        return divided("remainder", a, b.number)
    return Comparison(name, a.plus(b, -1)) if name in COMPARISONS else None
