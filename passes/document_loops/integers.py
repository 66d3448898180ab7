"""Integers of a document, as sums of boundaries and its number, and windows of its slots."""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

from torch import fx

from packpass.semantics.integers import SMALL


@dataclasses.dataclass(frozen=True)
class Boundaries:
    """N+1 document boundaries: the tensor itself, or the running sum of N lengths (``lengths=True``).

    ``made``: how the lengths are made, if no vector of the program holds them; ``node`` is one that they are made of.
    """

    node: fx.Node
    lengths: bool = False
    made: Affine | None = None


@dataclasses.dataclass(frozen=True)
class Bound:
    """``boundaries[i + k]`` for the document ``i`` of this iteration."""

    of: Boundaries
    k: int


@dataclasses.dataclass(frozen=True)
class Index:
    """The number ``i`` of this iteration's document."""


@dataclasses.dataclass(frozen=True)
class Invariant:
    """An integer that is the same for every document."""

    node: fx.Node


def place(bound: int, extent: int) -> int:
    """Where a slice of ``extent`` slots begins or ends that is written with ``bound``, as Python counts."""
    return min(max(bound + extent if bound < 0 else bound, 0), extent)


def broadcast(one: int, other: int) -> int:
    """How many slots a call has whose operands have so many each, if they fit."""
    return other if one == 1 else one


@dataclasses.dataclass(frozen=True)
class Derived:
    """``function(*args)`` of integers of the document: a quotient or remainder by a positive constant, the smaller or
    larger of two, the place that a bound of a slice stands for, the slots that two lengths make, the document's number
    times a size, a `Share`."""

    function: Any
    args: tuple[Affine, ...]


@dataclasses.dataclass(frozen=True)
class Share:
    """A function of `Derived`: multiplied by some numbers and divided by others, in this order, and rounded as the
    function ``how`` of torch does it."""

    how: str
    steps: tuple[tuple[bool, float], ...]
    """Is it a division, and by what (more than 0)?"""

    @property
    def shrinks(self) -> bool:
        """Is it no more than the number itself, if that is not negative?"""
        return all(by >= 1 if divides else by <= 1 for divides, by in self.steps)


Atom = Bound | Index | Invariant | Derived


@dataclasses.dataclass(frozen=True)
class Affine:
    """An integer ``const + sum(c * atom)``; an int tensor of one element counts as the integer it holds."""

    atoms: frozenset[tuple[Atom, int]] = frozenset()
    const: int = 0

    @staticmethod
    def of(value: Atom | int) -> Affine:
        return Affine(const=value) if isinstance(value, int) else Affine(frozenset({(value, 1)}))

    def plus(self, other: Affine, sign: int = 1) -> Affine:
        sums: dict[Atom, int] = dict(self.atoms)
        for atom, c in other.atoms:
            sums[atom] = sums.get(atom, 0) + sign * c
        return Affine(frozenset((a, c) for a, c in sums.items() if c), self.const + sign * other.const)

    def times(self, factor: int) -> Affine:
        return Affine(frozenset((a, c * factor) for a, c in self.atoms if factor), self.const * factor)

    def in_lowest_terms(self) -> Affine:
        """Divided by what divides all of it, which leaves its sign: the length of ``8 * length``."""
        by = math.gcd(self.const, *(c for _, c in self.atoms))
        return self if by < 2 else Affine(frozenset((a, c // by) for a, c in self.atoms), self.const // by)

    def shared(self) -> Affine:
        """The part that is the same for every document."""
        return Affine(frozenset((a, c) for a, c in self.atoms if isinstance(a, Invariant)), self.const)

    def bounds(self) -> list[Bound]:
        """Every entry of a vector that this is made of, and in the order that they are written down."""
        found: list[Bound] = []
        for atom, _ in sorted(self.atoms, key=repr):
            if isinstance(atom, Bound):
                found.append(atom)
            elif isinstance(atom, Derived):
                found += [bound for arg in atom.args for bound in arg.bounds()]
        return found

    @property
    def is_shared(self) -> bool:
        """Is this the same for every document?"""
        return all(
            all(arg.is_shared for arg in atom.args) if isinstance(atom, Derived) else isinstance(atom, Invariant)
            for atom, _ in self.atoms
        )

    @property
    def is_const(self) -> bool:
        return not self.atoms

    @property
    def number(self) -> int | None:
        """The constant that this is."""
        return None if self.atoms else self.const

    @property
    def is_large(self) -> bool:
        """May it be too large for 32 bits, where what it is made of is not?"""
        if any(isinstance(atom, Derived) and atom.function is operator.mul for atom, _ in self.atoms):
            return True
        parts = [arg for atom, _ in self.atoms if isinstance(atom, Derived) for arg in atom.args]
        factors = [abs(count) for _, count in self.atoms]
        return max((abs(self.const), *factors)) > SMALL or any(part.is_large for part in parts)

    def single(self) -> tuple[Atom, int] | None:
        """``(atom, const)`` if this is ``atom + const``."""
        if len(self.atoms) != 1:
            return None
        ((atom, c),) = self.atoms
        return (atom, self.const) if c == 1 else None

    def bound(self) -> tuple[Bound, int] | None:
        """``(boundary, const)`` if this is one boundary plus a constant."""
        found = self.single()
        return (found[0], found[1]) if found is not None and isinstance(found[0], Bound) else None

    def length_of(self) -> tuple[Boundaries, int] | None:
        """``(boundaries, const)`` if this is the length of the iteration's document plus a constant."""
        if len(self.atoms) == 1:
            ((atom, c),) = self.atoms
            if isinstance(atom, Bound) and c == 1 and atom.k == 0 and not atom.of.lengths:
                return Boundaries(atom.of.node, lengths=True), self.const  # entry i of a vector of lengths
            return None
        by_k = {atom.k: (atom, c) for atom, c in self.atoms if isinstance(atom, Bound)}
        if len(self.atoms) == 2 and set(by_k) == {0, 1} and by_k[0][1] == -1 and by_k[1][1] == 1:
            low, high = by_k[0][0], by_k[1][0]
            if low.of == high.of:
                return low.of, self.const
        return None


@dataclasses.dataclass(frozen=True)
class Window:
    """Slots of a document ``[s, e)``: from ``s + front`` to ``e - back``; or only the first / last ``k`` of them.

    ``first=k`` is ``[s, min(s + k, e))``, ``last=k`` is ``[max(e - k, s), e)``; both exclude front and back.
    ``between`` are two numbers of the document, counted from ``s``, the second at least the first; nothing else goes
    with them.
    """

    front: int = 0
    back: int = 0
    first: int | None = None
    last: int | None = None
    between: tuple[Affine, Affine] | None = None

    @property
    def full(self) -> bool:
        return self == FULL

    @property
    def plain(self) -> bool:
        return self.first is None and self.last is None and self.between is None

    @property
    def said(self) -> str:
        """In words."""
        if self.between is not None:
            return "the slots between two numbers"
        if self.plain:
            return f"all but {self.front} slots in front and {self.back} behind" if self != FULL else "all slots"
        return f"the first {self.first}" if self.first is not None else f"the last {self.last}"

    @property
    def single(self) -> bool:
        """One slot at an end, of documents that have any?"""
        return self in (Window(first=1), Window(last=1))

    def complements(self, other: Window) -> bool:
        """Do the two cut every document in two parts without overlap?"""
        for a, b in ((self, other), (other, self)):
            opened = {Window(last=a.back)} if a.front == 0 else {Window(first=a.front)} if a.back == 0 else set()
            if a.plain and b in opened:
                return True
        return False


FULL = Window()


@dataclasses.dataclass(frozen=True)
class Condition:
    """``left op right`` of numbers of the document, each an `Affine` or a term of every document's, or the opposite;
    ``op`` is "lt", "le", "gt", "ge", "eq" or "ne"."""

    left: Any
    op: str
    right: Any
    holds: bool = True
    """False: it does not hold, which for what is no number is not to say that the opposite comparison does."""


@dataclasses.dataclass(frozen=True)
class Reach:
    """The documents that get as far as some point of the body: those of at least ``slots`` slots for which all of the
    ``conditions`` hold."""

    slots: int = 0
    conditions: tuple[Condition, ...] = ()

    def __bool__(self) -> bool:
        """May there be a document that does not get there?"""
        return self.slots > 0 or bool(self.conditions)

    @property
    def misses_slots(self) -> bool:
        """May such a document have slots?"""
        return self.slots > 1 or bool(self.conditions)

    def longer(self, slots: int) -> Reach:
        """Those of them that have so many slots."""
        return Reach(max(self.slots, slots), self.conditions)

    def where(self, condition: Condition) -> Reach:
        """Those of them for which a condition holds, too."""
        known = condition in self.conditions
        return self if known else Reach(self.slots, (*self.conditions, condition))


EVERY = Reach()


@dataclasses.dataclass(frozen=True)
class Check:
    """``left op right`` must hold for every document of ``reach``; both an `Affine` or a term of all documents."""

    left: Any
    op: str
    right: Any
    message: str
    reach: Reach = EVERY
    of_slices: bool = False
    """Only where slices by numbers of the document are taken for what these numbers say (see `fitting`)."""
