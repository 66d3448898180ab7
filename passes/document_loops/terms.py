"""What a loop body computes, as values over a whole row: terms.

A *term* describes, for every document at once, the tensor that an iteration computes for its own document. Terms are
frozen and interned: two iterations do the same thing exactly if they leave the same terms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import fx

from packpass.semantics.creation import WITHOUT_GRADIENT
from packpass.semantics.names import name_of_target
from passes.document_loops.integers import EVERY, Affine, Reach, Window

# === Terms ===================================================================================================


class Term:
    """A value for every slot of every document. ``dim`` (negative) is its packed dimension.

    A term of another pass has a method ``emit(emitter)`` that makes its node; ``keeps_tail`` says that slots of no
    document hold what its source ``of`` has there.
    """

    dim: int
    keeps_tail: ClassVar[bool] = False
    own_reach: ClassVar[bool] = False
    """Does what is made of it, an outer tensor, say itself which documents change it?"""


class Interner:
    """One object per distinct term, so that comparing two terms looks at one level only."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._serial: dict[int, int] = {}

    def __call__(self, value: Any) -> Any:
        key = (type(value), *(self._key(getattr(value, f.name)) for f in dataclasses.fields(value)))
        found = self._known.setdefault(key, value)
        self._serial.setdefault(id(found), len(self._serial))
        return found

    def _key(self, v: Any) -> Any:
        if isinstance(v, (Term, Outside)):
            return ("term", self._serial[id(v)])
        if isinstance(v, (tuple, list)):
            return (type(v).__name__, *(self._key(item) for item in v))
        if isinstance(v, Slice):
            return ("slice", self._key(v.start), self._key(v.stop), self._key(v.step))
        # 1, 1.0 and True are equal in Python and different in a graph.
        return (type(v).__name__, repr(v)) if isinstance(v, (bool, int, float, complex)) else v


@dataclasses.dataclass(frozen=True, eq=False)
class Row(Term):
    """The content, before the loop, of a tensor from outside (``index`` selects along its other dimensions)."""

    node: fx.Node
    index: tuple[Any, ...]
    dim: int


@dataclasses.dataclass(frozen=True, eq=False)
class Apply(Term):
    """``target(*args, **kwargs)`` on whole rows, for an op that treats every slot alike.

    Arguments are terms, `Outside` tensors, `LENGTH` (the packed size) or plain Python values, nested in tuples.
    """

    target: Any
    method: bool
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    dim: int


@dataclasses.dataclass(frozen=True, eq=False)
class Outside:
    """A tensor from outside the loop that every document uses whole (``term`` for one computed inside)."""

    node: fx.Node | None
    call: tuple[Any, ...] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Roll(Term):
    """Each document rolled by ``shift``: wraps around (``fill=None``), or fills, or leaves them open (`ANY`)."""

    keeps_tail: ClassVar[bool] = True

    of: Term
    shift: int
    fill: Any
    dim: int


@dataclasses.dataclass(frozen=True, eq=False)
class Flip(Term):
    """Each document reversed."""

    keeps_tail: ClassVar[bool] = True

    of: Term
    dim: int


@dataclasses.dataclass(frozen=True, eq=False)
class Positions(Term):
    """``start + slot - document start``, or counted from the row's start (``per_document=False``): an arange.

    ``gathered``: counted from where the documents begin, if there is no row but theirs.
    """

    per_document: bool
    start: int
    dtype: Any
    device: Any
    dim: int = -1
    gathered: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Guard(Term):
    """``of`` on the slots of ``window`` of documents of ``reach``, ``fill`` elsewhere: keeps NaN of slots that nobody
    asked for out of gradients (1), and their numbers out of lookups (0)."""

    of: Term
    window: Window
    dim: int
    fill: int = 1
    reach: Reach = EVERY


@dataclasses.dataclass(frozen=True, eq=False)
class Assign(Term):
    """``base`` with the slots of ``window`` replaced by ``value`` (a term, an `Outside` or a Python scalar)."""

    base: Term
    window: Window
    value: Any
    dim: int


# === Terms with one entry per document =======================================================================
#
# In the whole-row form dimension 0 counts documents and has N + 1 entries: the last one, a document without slots,
# keeps shapes at those of the boundaries (vectors of N entries make torch ask whether N is 1). Nothing reads it.


@dataclasses.dataclass(frozen=True, eq=False)
class DocVector(Term):
    """An integer of every document, as a tensor of no dimensions."""

    value: Affine
    dtype: Any


@dataclasses.dataclass(frozen=True, eq=False)
class DocRow(Term):
    """Row ``i + k`` along ``dim`` of an outer tensor for document i, before the loop (``index`` as in `Row`)."""

    node: fx.Node
    index: tuple[Any, ...]
    dim: int
    k: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class PointRead(Term):
    """The slot ``position`` (a number, or a `Term` of every document's) of an outer row, which nothing writes, in
    documents of ``reach``."""

    row: Row
    position: Affine | Term
    reach: Reach


@dataclasses.dataclass(frozen=True, eq=False)
class Reduce(Term):
    """``op`` (sum, prod, amax, amin, max, min) over all slots of the document and over the dimensions ``others``."""

    of: Term
    op: str
    dim: int
    others: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class ArgReduce(Term):
    """Position, within the document, of its largest (smallest) slot; of the flattened slots with ``others``."""

    of: Term
    largest: bool
    dim: int
    others: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Take(Term):
    """The slot at a position (a number, or a `Term`) counted from the document's start (negative: its end)."""

    of: Term
    position: Any
    dim: int


@dataclasses.dataclass(frozen=True, eq=False)
class DocGuard(Term):
    """``of`` in documents of ``reach``, 1 in others and in the last entry: see `Guard`."""

    of: Term
    reach: Reach


@dataclasses.dataclass(frozen=True, eq=False)
class DocAssign(Term):
    """``value`` (a term, an `Outside` or a number) in documents of ``reach``, ``base`` in others."""

    base: Term
    value: Any
    reach: Reach


# === Terms from documents back to slots, and scans ===========================================================


@dataclasses.dataclass(frozen=True, eq=False)
class Spread(Term):
    """Every slot gets its document's value, which has ``rank`` dimensions and lines up with a row of packed ``dim``."""

    of: Term
    rank: int
    dim: int


@dataclasses.dataclass(frozen=True, eq=False)
class Fill(Term):
    """``of`` on the slots of ``window``, a number elsewhere (the identity of a reduction, say)."""

    of: Term
    window: Window
    number: Any
    dim: int


@dataclasses.dataclass(frozen=True, eq=False)
class Scan(Term):
    """Running ``op`` ("sum", "prod", "max", "min", "logsumexp") over the slots of each document."""

    of: Term
    op: str
    dim: int


@dataclasses.dataclass(frozen=True, eq=False)
class Attention(Term):
    """Attention of every document with itself: ``[H, T, D]``, or ``[1, H, T, D]`` for a ``rank`` of 4."""

    q: Term
    k: Term
    v: Term
    causal: bool
    scale: float | None
    rank: int
    dim: int = -2
    window: tuple[int, int] = (-1, -1)
    """How many slots before its own, and behind it, a query sees; -1: all."""


@dataclasses.dataclass(frozen=True, eq=False)
class Softmax(Term):
    """Softmax (log_softmax) over the slots of each document."""

    of: Term
    log: bool
    dim: int


@dataclasses.dataclass(frozen=True)
class Slice:
    """A slice in an argument structure (Python's own is not hashable before 3.12)."""

    start: Any
    stop: Any
    step: Any


@dataclasses.dataclass(frozen=True)
class _Marker:
    name: str

    def __repr__(self) -> str:
        return self.name


ANY = _Marker("ANY")
"""Fill of slots that nothing reads."""
LENGTH = _Marker("LENGTH")
"""Stands for the document's length in a shape argument; the row's length after the rewrite."""


def children(value: Any, conditions: bool = True) -> list[Any]:
    """Terms and outside tensors directly below a term, an `Outside` or an argument structure; ``conditions``: those of
    the conditions on documents as well, which no gradient reaches."""
    found: list[Any] = []

    def visit(v: Any) -> None:
        if isinstance(v, (Term, Outside)):
            found.append(v)
        elif isinstance(v, (tuple, list)):
            for item in v:
                visit(item)
        elif isinstance(v, Slice):
            visit((v.start, v.stop, v.step))
        elif isinstance(v, Reach) and conditions:
            visit(tuple(number for one in v.conditions for number in (one.left, one.right)))

    if isinstance(value, Outside):
        visit(value.call)
    elif isinstance(value, Term):
        visit(tuple(getattr(value, f.name) for f in dataclasses.fields(value)))  # type: ignore[arg-type]
    return found


def walk(value: Any, conditions: bool = True, detached: bool = True) -> list[Any]:
    """Every distinct term and outside tensor in ``value``, itself included; ``conditions`` as in `children`. Of what is
    ``detached``, as all that is made for the form of a tensor alone is: the call alone, if told so."""
    seen: dict[Any, None] = {}
    stack = [value] if isinstance(value, (Term, Outside)) else []
    while stack:
        v = stack.pop()
        if v not in seen:
            seen[v] = None
            if detached or not _is_detached(v):
                stack.extend(children(v, conditions))
    return list(seen)


def _is_detached(value: Any) -> bool:
    call = (
        value.target
        if isinstance(value, Apply)
        else value.call and value.call[0]
        if isinstance(value, Outside)
        else None
    )
    return bool(call) and name_of_target(call) in WITHOUT_GRADIENT


def map_args(value: Any, fn: Callable[[Any], Any]) -> Any:
    """Rebuild an FX argument structure (tuples, lists, slices, dicts) with ``fn`` applied to the leaves."""
    if isinstance(value, (tuple, list)):
        return type(value)(map_args(v, fn) for v in value)
    if isinstance(value, (slice, Slice)):
        return type(value)(*(map_args(v, fn) for v in (value.start, value.stop, value.step)))
    if isinstance(value, Mapping):
        return {k: map_args(v, fn) for k, v in value.items()}
    return fn(value)


def thawed(value: Any) -> Any:
    """Interned argument structures back as Python's own."""
    if isinstance(value, Slice):
        return slice(thawed(value.start), thawed(value.stop), thawed(value.step))
    if isinstance(value, tuple):
        return tuple(thawed(v) for v in value)
    return value
