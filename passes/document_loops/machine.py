"""The abstract machine that runs one iteration of a loop body.

Every node of the body gets an abstract value: an `Affine` integer, a `Segment` (a live view of one document's part of
a `Store`), an `Outside` tensor that all documents share, or `OPAQUE` (known only to assertions). Tensor storage is
modelled by `Store`: an outer tensor is one store for the iteration's own document, and since documents do not
overlap, what other iterations write to their own documents cannot be seen here. Whatever could break that is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.integers import EVERY, FULL, Affine, Boundaries, Check, Invariant, Reach, Window
from passes.document_loops.moved import meets, onto
from passes.document_loops.reached import Reached, keep_gradients, may_be_none, refuse_mixing
from passes.document_loops.terms import (
    ANY,
    Apply,
    Assign,
    DocRow,
    Guard,
    Interner,
    Outside,
    Roll,
    Row,
    Slice,
    Spread,
    Take,
    Term,
)
from passes.refused import Refused, refuse_stale

if TYPE_CHECKING:
    from passes.document_loops.blocks import Block
    from passes.document_loops.elsewhere import Elsewhere
    from passes.document_loops.row_slots import Spot
    from passes.document_loops.whole import Whole

OPAQUE = object()
"""Value of a symbolic integer that only assertions look at."""


@dataclasses.dataclass(eq=False)
class Store:
    """Memory of one document's part of a tensor: ``term`` is its content now, valid on the slots of ``domain``."""

    term: Term
    domain: Window = FULL
    outer: Row | Elsewhere | Block | Whole | None = None
    """Set for a tensor from outside the loop: the row it is cut from."""
    parent: tuple[Store | Cell, int] | None = None
    """Set for a view with another shape, or a result that may alias: may be read while the parent is unchanged."""
    version: int = 0
    turn: int = 0
    """Which write of the body the last one was."""
    least: int = 0
    """So many slots at least, also of shorter documents: a cat that refills what it cut off has them."""
    made_of: Any = None
    """If not, the `parts.Pieces` that it is for documents of every length, until it is written."""
    point_fills: tuple[tuple[str, Any], ...] = ()
    """The last writes were a scalar to ``cu[i+1] - 1`` ("end"; "last" as a slice) or ``cu[i]`` ("start"; "first")."""

    @property
    def exact(self) -> bool:
        """Is it as long as the document?"""
        return self.least == 0


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
    """A live view of ``window`` of a store; ``rank`` is the number of dimensions."""

    store: Store
    window: Window
    rank: int

    @property
    def dim(self) -> int:
        return self.store.term.dim


@dataclasses.dataclass(frozen=True, eq=False)
class Padded:
    """A document with ``left`` and ``right`` more slots of ``fill``; only slicing those off again is understood."""

    segment: Segment
    left: int
    right: int
    fill: Any


@dataclasses.dataclass(eq=False)
class Cell:
    """Memory of one document's value: ``term`` is its content now, one entry per document."""

    term: Term
    outer: DocRow | None = None
    """Set for a row of an outer tensor that has one row per document."""
    parent: tuple[Cell | Store, int] | None = None
    """As in `Store`: set for what may share memory with something else."""
    version: int = 0
    spot: Spot | None = None
    """Set for a part of the value that is its parent, by numbers of the document."""


@dataclasses.dataclass(frozen=True, eq=False)
class Document:
    """One tensor per document, all of one shape (that of the traced one)."""

    cell: Cell


@dataclasses.dataclass(frozen=True, eq=False)
class Number:
    """One Python number per document: does not promote tensors. ``term`` is int64 or float64 of shape [N + 1].

    ``bits``: so many hold it, if it is an integer (`bits`)."""

    term: Term
    bits: int = 63


@dataclasses.dataclass(frozen=True, eq=False)
class Slot:
    """One slot of every document, without its packed dimension: a live view, to be filled or read."""

    segment: Segment
    where: str | None = None
    """"start" or "end" if the slot of an outer tensor was selected by a boundary itself."""
    position: Affine | None = None
    """Where in the outer tensor it is; set without ``where``, the slot can only be read."""


PER_DOCUMENT = (Document, Number, Slot)


Rule = Callable[["Machine", fx.Node], Any]


class Machine:
    """State while one iteration is interpreted."""

    def __init__(self, intern: Interner, inside: set[fx.Node], fakes: dict[int, Any]) -> None:
        self.intern = intern
        self.fakes = fakes
        """Fake value of every `Outside` computed in the body, by identity; shared by both iterations."""
        self.inside = inside
        self.values: dict[fx.Node, Any] = {}
        self.outer: dict[tuple[Any, ...], Store] = {}
        self.boundaries: Any = None
        self.checks: list[Check] = []
        self.rows: dict[tuple[Any, ...], Cell] = {}
        """Rows of outer tensors that have one row per document."""
        self.vectors: set[fx.Node] = set()
        """Vectors of integers whose elements are known as such."""
        self.turns = 0
        """How many writes there have been."""
        self.here: fx.Node | None = None
        """The call of the body that is being interpreted."""
        self.parts_of_documents = False
        """Are the slots that the body works on parts of other documents, which it cuts first?"""
        self.part: Boundaries | None = None
        """The documents that slots between two numbers of a document are, if the loop cuts such."""
        self.met: list[tuple[fx.Node, Window]] = []
        """Calls in which one slot may meet several, and the slots that their results have."""
        self.reach = EVERY
        """The documents that get as far as this point of the body."""
        self.asked: Boundaries | None = None
        """What the loop is taken to go by, if that was first a condition's length."""
        self.numbers: frozenset[Boundaries] = frozenset()
        """Lengths in conditions that are known to be numbers like any others, and none of the loop's documents."""
        self.arms = 0
        """How many ways are looked at one by one; 1 if it is their lengths alone by which documents are told apart."""
        self.others: Reach | None = None
        """Then, if this is the arm that exactly the documents outside of a reach take: that."""
        self.skips_empty = False
        self.skip: dict[Any, tuple[Term, int]] | None = None
        """The content, and version, that stores have for documents that do not get to the end of the body."""
        self.instead: Refused | None = None
        """Why a part of an outer tensor is no document of boundaries, if it is taken for a document of its own."""
        self.behind_end: tuple[int, Reach] = (0, EVERY)
        """By how much slices of outer tensors end before a boundary, and slots of the documents that get there."""
        self.writes_behind_end = False
        """Is such a slice written?"""
        self.split_of: list[fx.Node] = []
        self.sent: dict[fx.Node, Term] = {}
        """What is sent to other ranks, whether or not this one needs what comes."""
        self.filled: list[tuple[fx.Node, fx.Node, int]] = []
        """Rows, lengths that they are split by and where, if the loop goes by parts of the documents."""
        self.taken_apart: list[Any] = []
        """What the calls that are being taken apart (`taken_apart`), one within the other, are calls of."""
        self.defined = 0
        """How many kernels were replaced by torch's definitions of them while that was done."""

    @property
    def by_rows(self) -> bool:
        """Does it cut no slots out of anything?"""
        return self.boundaries is None or self.boundaries[0].made == Affine.of(1)

    def state(self) -> tuple[Any, ...]:
        """What a rule may change before it finds that it cannot go on; for `restore`."""
        copies = (list(self.checks), dict(self.rows), dict(self.outer), set(self.vectors), list(self.split_of))
        return copies, (self.boundaries, self.reach, self.skips_empty, self.skip)

    def restore(self, state: tuple[Any, ...]) -> None:
        """Forget what was learned since `state` was called. Writes to stores are not undone."""
        (self.checks, self.rows, self.outer, self.vectors, self.split_of), rest = state
        self.boundaries, self.reach, self.skips_empty, self.skip = rest

    # --- values ---------------------------------------------------------------------------------------------

    def value(self, arg: Any) -> Any:
        """Abstract value of an argument; Python constants are themselves."""
        if not isinstance(arg, fx.Node):
            return arg
        if arg in self.values:
            return self.values[arg]
        if arg in self.inside:
            raise Refused("no-rule", f"the value of {arg.name} is not understood", arg)
        return self.outside(arg)

    def outside(self, node: fx.Node) -> Any:
        fake = example(node)
        if isinstance(fake, (torch.SymInt, int)) and not isinstance(fake, bool):
            return Affine.of(fake) if isinstance(fake, int) else Affine.of(Invariant(node))
        if isinstance(fake, torch.Tensor):
            return self.intern(Outside(node))
        return OPAQUE

    def affine(self, arg: Any) -> Affine | None:
        """``arg`` as an integer, if it is one that the machine knows."""
        value = self.value(arg)
        if isinstance(value, bool):
            return None
        if isinstance(value, int):
            return Affine.of(value)
        return value if isinstance(value, Affine) else None

    # --- boundaries and stores ------------------------------------------------------------------------------

    def use(self, boundaries: Any, node: fx.Node) -> None:
        """All segments of a body must be cut by the same boundaries."""
        if self.boundaries is None:
            self.boundaries = boundaries
        elif self.boundaries != boundaries:
            raise Refused("two-boundaries", "the body cuts tensors by two different sets of boundaries", node)

    def outer_segment(self, node: fx.Node, index: tuple[Any, ...], dim: int, window: Window, rank: int) -> Segment:
        """The part of an outer tensor that belongs to this document. ``dim`` is negative, counted after ``index``."""
        key = (node, index, dim)
        store = self.outer.get(key)
        if store is None:
            row = self.intern(Row(node, index, dim))
            store = self.outer[key] = Store(row, outer=row)
        return Segment(store, window, rank)

    def guard(self, term: Term, window: Window, dim: int, fill: int = 1) -> Term:
        """``term`` where the body works on it, ``fill`` on all other slots."""
        guarded: Term = self.intern(Guard(term, window, dim, fill, self.reach if self.reach.misses_slots else EVERY))
        return guarded

    def fresh(self, term: Term, rank: int, window: Window = FULL, least: int = 0, made_of: Any = None) -> Segment:
        """A new tensor that nothing else refers to."""
        return Segment(Store(self.intern(term), window, least=least, made_of=made_of), window, rank)

    def view(self, term: Term, rank: int, of: Segment) -> Segment:
        """A tensor that may share memory with ``of`` under another shape."""
        store = Store(self.intern(term), of.window, parent=(of.store, of.store.version), least=of.store.least)
        return Segment(store, of.window, rank)

    def read(self, segment: Segment, node: fx.Node) -> Term:
        """Current content of the store behind a segment."""
        store = segment.store
        if store.point_fills:
            raise Refused("point-read", "a slot written at a boundary is read again in the same iteration", node)
        refuse_stale(store, node)
        return store.term

    def aligned(self, segment: Segment, window: Window, node: fx.Node, broadcast: bool = False) -> Term:
        """Content of ``segment`` moved so that it stands on the slots of ``window``. ``broadcast``: a segment of one
        slot, ``x[-1:]``, stands on all of them (and is none where a document has none)."""
        term = self.read(segment, node)
        have = segment.window
        if have == window:
            return term
        if broadcast and segment.store.exact and (have.single or self.boundaries is not None):
            self.met.append((node, window))
        if broadcast and window.plain and have.single and segment.store.exact:
            slot = self.intern(Take(term, 0 if have.first else -1, term.dim))
            slot = self.intern(Apply(torch.unsqueeze, False, (slot, term.dim), (), 0))
            return self.intern(Spread(slot, segment.rank, term.dim))
        if broadcast and meets(self, (segment, Segment(segment.store, window, segment.rank))):
            return onto(self, segment, term, window)
        if not (have.plain and window.plain) or have.front + have.back != window.front + window.back:
            raise Refused(
                "length-mismatch",
                f"parts of a document with different lengths are combined ({have.said} and {window.said})",
                node,
            )
        return self.intern(Roll(term, window.front - have.front, ANY, term.dim))

    def write(self, target: Segment, window: Window, value: Any, node: fx.Node) -> None:
        """Assign ``value`` (Segment, Outside or Python scalar) to ``window`` of the store behind ``target``."""
        store = target.store
        self.writes_behind_end |= store.outer is not None and window.back > 0
        if store.parent is not None:
            raise Refused("write-through-view", "a view, or a tensor that may be one, is changed in place", node)
        if store.point_fills:
            raise Refused("point-read", "a tensor is written again after a write at a boundary", node)
        if store.domain != FULL:
            raise Refused(
                "partial-store", "a part of a document that was computed on its own is changed in place", node
            )
        if isinstance(value, Segment):
            if value.dim != target.dim or value.rank > target.rank:
                raise Refused("dim-mismatch", "the packed dimensions of the two sides are not the same", node)
            if value.window == window and not value.store.exact and window != FULL:
                raise Refused("length-mismatch", "a padded part of a document is written to a part of another", node)
            value = self.aligned(value, window, node, broadcast=True)
        elif isinstance(value, Outside):
            self.broadcasts(value, target.dim, node)
        elif isinstance(value, Affine) or value is OPAQUE:
            raise Refused(
                "index-as-number", "a boundary, a length or the document's number is written as a value", node
            )
        elif not isinstance(value, (int, float, complex)):
            reason = "what is written is put together of parts that need not be a document"
            raise Refused("length-mismatch", reason, node)
        store.term = self.intern(Assign(store.term, window, value, store.term.dim))
        store.version += 1
        self.turns += 1
        store.turn = self.turns

    def finish(self) -> None:
        """End of the body: what happened after a skip happened only in documents that were not skipped. A loop that
        looks at rows of batches alone goes by them: by documents of one slot each."""
        if self.boundaries is None and (self.rows or self.outer):
            self.boundaries = Boundaries(next(iter(self.rows or self.outer))[0], lengths=True, made=Affine.of(1)), 0
        skips = self.skip is not None
        alone = may_be_none(self.reach, self.boundaries) and (skips or not self.reach.misses_slots)
        for cell in self.rows.values():
            if cell.version and skips:
                refuse_mixing(cell.term, self.reach)
            if cell.version and alone:
                keep_gradients(self.inside, cell.term, cell.outer)
        for key, store in self.outer.items():
            old, version = (self.skip or {}).get(key, (store.outer, 0))
            changed = store.outer is not None and store.version != version
            if changed and alone:
                keep_gradients(self.inside, store.term, old)
            if changed and old is not None and skips and not old.own_reach:
                refuse_mixing(store.term, self.reach)
                store.term = self.intern(Reached(self.reach, store.term, old, store.term.dim))

    def require(self, left: Affine, op: str, right: Affine, message: str, of_slices: bool = False) -> None:
        """What must hold for every document that gets to this point of the body."""
        check = Check(left, op, right, message, self.reach, of_slices)
        if check not in self.checks:
            self.checks.append(check)

    def broadcasts(self, value: Outside, dim: int, node: fx.Node) -> None:
        """A tensor from outside may meet a segment only if it has one entry, or none, along the packed dimension."""
        fake = self.fake(value)
        if fake.dim() >= -dim:
            size = fake.shape[dim]
            if not (isinstance(size, int) and size == 1):
                raise Refused("whole-row-operand", "a tensor with its own packed dimension meets a segment", node)

    def fake(self, value: Outside) -> Any:
        return example(value.node) if value.node is not None else self.fakes[id(value)]

    def computed(self, call: tuple[Any, ...], fake: Any) -> Outside:
        """A tensor computed in the body from outside tensors alone."""
        value: Outside = self.intern(Outside(None, call))
        self.fakes.setdefault(id(value), fake)
        return value


def frozen_args(value: Any) -> Any:
    """An argument structure with lists as tuples and slices as `Slice`, so that it can be interned."""
    if isinstance(value, (tuple, list)):
        return tuple(frozen_args(v) for v in value)
    if isinstance(value, slice):
        return Slice(frozen_args(value.start), frozen_args(value.stop), frozen_args(value.step))
    return value


def selection(entries: list[Any], *cuts: int) -> tuple[tuple[Any, ...], list[int], int]:
    """``(index along the other dimensions, dims, rank)`` as `Row` has them, where ``cuts`` are taken whole."""
    rest = [slice(None) if d in cuts else e for d, e in enumerate(entries)]
    kept = [d for d, e in enumerate(rest) if isinstance(e, slice)]
    frozen = () if all(e == slice(None) for e in rest) else tuple(frozen_args(e) for e in rest)
    return frozen, [kept.index(d) - len(kept) for d in cuts], len(kept)
