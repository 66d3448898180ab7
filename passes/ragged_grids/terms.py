"""What a tensor of one document holds, as a function of where one looks: terms.

Every term has dimensions, expressions of the document's numbers (`passes.ragged_grids.sizes`). A term that is made from
another says at which coordinates it reads that one. Terms are interned: equal terms are one object, so that two traced
iterations do the same exactly if they leave the same terms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import fx

from packpass.semantics.limits import NO_LIMITS, Limits

Places = tuple[Any, ...]
"""Coordinates, one per dimension: expressions, or an `Index`."""


Form = tuple[tuple[Any, ...], torch.dtype, torch.device, bool]
"""The fields that every term has."""


@dataclasses.dataclass(frozen=True, eq=False)
class Term:
    """``dims``, dtype and device of a tensor; ``grad``: may a gradient go through it?"""

    dims: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device
    grad: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Input(Term):
    """A tensor from outside the loop."""

    node: fx.Node


@dataclasses.dataclass(frozen=True, eq=False)
class Piece(Term):
    """The document's part of a tensor that is split by a list of lengths along ``dim``."""

    node: fx.Node
    dim: int
    length: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Number(Term):
    """An integer tensor without dimensions that holds a number of the document."""

    value: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Count(Term):
    """``start + step * i``."""

    start: Any
    step: int


@dataclasses.dataclass(frozen=True, eq=False)
class Numbers(Term):
    """Integers worked out from where they are: an expression of the coordinates."""

    value: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Filled(Term):
    """One number everywhere."""

    value: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Read:
    """A term at places."""

    of: Term
    at: Places


@dataclasses.dataclass(frozen=True, eq=False)
class Index:
    """A coordinate that a tensor of integers holds; ``wraps``: are negative ones counted from the end?"""

    read: Read
    wraps: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Moved(Term):
    """The slots of another term, elsewhere: a view, an index, a lookup."""

    read: Read


@dataclasses.dataclass(frozen=True, eq=False)
class Chosen(Term):
    """One of several terms, by where it is along a dimension; ``ends``: where, along ``dim``, each one ends."""

    parts: tuple[Read, ...]
    ends: tuple[Any, ...]
    dim: int
    stacked: bool
    """Is ``dim`` a dimension of its own, so that each part is read where it has slots?"""


@dataclasses.dataclass(frozen=True, eq=False)
class Padded(Term):
    """Another term where ``0 <= at < size`` for each of ``within``; elsewhere ``fill``, a number, or a `Read`."""

    read: Read
    within: tuple[tuple[Any, Any], ...]
    fill: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Applied(Term):
    """A function, slot by slot. ``args`` and ``kwargs`` hold `Read` for tensors and `Value` for numbers."""

    target: Any
    method: bool
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    copies: bool = False
    """Does it hold the values of what it reads, perhaps as another dtype?"""
    raises: bool = False
    """May it fail because of what a slot holds?"""
    op: str = ""
    """The operation, where ``args`` are all that it is given."""
    limits: Limits = NO_LIMITS
    """Between which integers every slot lies."""


@dataclasses.dataclass(frozen=True, eq=False)
class Kept(Term):
    """The slots of another term, along its first dimension, at which a condition holds: ``x[mask]``."""

    read: Read
    mask: Read


@dataclasses.dataclass(frozen=True, eq=False)
class Reduced(Term):
    """What ``op`` makes of the slots along dimensions that all documents share. ``read`` is written for the dimensions
    of this term and, behind them, those that are gone (``over``)."""

    op: str
    read: Read
    over: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Scanned(Term):
    """Sums of integers of the document up to each slot of its only dimension."""

    read: Read


@dataclasses.dataclass(frozen=True, eq=False)
class Layer(Term):
    """What a function makes of every slot's features, dimensions that all documents share: a norm, a linear layer. Its
    dimensions are the slots of a document, as one dimension, and the features. Made for whole rows, it lies in memory
    as a tensor from outside does. ``target`` is None where it is the operand itself that is to lie in memory."""

    operand: Term
    """What has the slots."""
    target: Any
    method: bool
    args: tuple[Any, ...]
    """With `Read` for tensors: of the operand, [slots, features], and of tensors that all documents share."""
    kwargs: tuple[tuple[str, Any], ...]
    rank: int
    """How many dimensions there are in front of the features where the program calls the function."""


@dataclasses.dataclass(frozen=True, eq=False)
class Pooled(Term):
    """What ``op`` makes of every ``size`` slots in a row, ``count`` times. ``read`` is all of a term [slots, features]
    that is to lie in memory; this one has [count, features], or as many slots for a softmax and for running values."""

    op: str
    read: Read
    size: Any
    count: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Product(Term):
    """A product of matrices, or (``p``) the distances of their rows in that norm. The rows of all batches lie behind
    each other, [batch * rows, columns]; in one dimension where documents have columns of their own. Both operands are
    all of a term that is to lie in memory: [batch * rows, inner], and [batch * inner, columns], or ``turned``: [batch *
    columns, inner]; in one dimension likewise."""

    left: Read
    right: Read
    sizes: tuple[Any, Any, Any, Any]
    """Batch, rows, inner, columns."""
    turned: bool
    p: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Selected(Term):
    """Of each document, all of the one of several terms whose name is 1 for it; the other names are 0."""

    parts: tuple[Read, ...]
    names: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """A number of the document as an argument, of the dtype that an operation promotes it to."""

    value: Any
    dtype: torch.dtype = torch.int64


OWN_ROWS = (Layer, Pooled, Product)
"""What is worked out for all slots of all documents, in a row of its own that others look at."""

T = TypeVar("T")


class Interner:
    """Equal terms are one object."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def __call__(self, term: T) -> T:
        key = (type(term), *(_key(getattr(term, f.name)) for f in dataclasses.fields(term)))  # type: ignore[arg-type]
        return self._known.setdefault(key, term)


def _key(value: Any) -> Any:
    """Values of Python that are equal and not the same: 1, 1.0 and True."""
    if isinstance(value, tuple):
        return tuple(_key(v) for v in value)
    return (type(value), value) if isinstance(value, (bool, int, float)) else value


def reads(value: Any) -> Iterator[Read]:
    """What a term, or a structure of arguments, reads."""
    if isinstance(value, Read):
        yield value
        for at in value.at:
            yield from reads(at)
    elif isinstance(value, (Moved, Index, Reduced, Scanned, Pooled)):
        yield from reads(value.read)
    elif isinstance(value, Padded):
        yield from reads((value.read, value.fill))
    elif isinstance(value, Kept):
        yield from reads(value.read)
        yield from reads(value.mask)
    elif isinstance(value, (Chosen, Selected)):
        yield from reads(value.parts)
    elif isinstance(value, Product):
        yield from reads((value.left, value.right))
    elif isinstance(value, (Applied, Layer)):
        yield from reads(value.args)
        yield from reads(value.kwargs)
    elif isinstance(value, tuple):
        for v in value:
            yield from reads(v)


def walk(*terms: Term, around: tuple[type[Term], ...] = ()) -> Iterator[Term]:
    """All terms that these are made of, themselves included, each once; but not what those of the kinds ``around`` are
    made of."""
    seen: set[Term] = set()
    stack = list(terms)
    while stack:
        term = stack.pop()
        if term not in seen:
            seen.add(term)
            yield term
            stack += [] if isinstance(term, around) else [read.of for read in reads(term)]


def computed(read: Read) -> bool:
    """Is something worked out, slot by slot, of what is read, that may raise or has a gradient of its own?"""
    parts = walk(read.of, around=(Layer,))
    return any(isinstance(part, Applied) and not part.copies and (part.grad or part.raises) for part in parts)


def frozen(value: Any) -> Any:
    """Arguments as tuples throughout."""
    return tuple(frozen(v) for v in value) if isinstance(value, (tuple, list)) else value
