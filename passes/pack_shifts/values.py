"""Values of the interpreter: rows with their memory, views of them, and tensors that hold one number."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import fx

from packpass.semantics import example
from passes.pack_shifts.pieces import ZERO, Const, Piece, Pieces, Pos, Read, Source, source_of, whole


@dataclasses.dataclass(eq=False)
class Store:
    """Memory of one tensor whose dimension ``dim`` is a row: what each slot of it holds now.

    ``alternatives`` describe the same slots: by the tensors they come from in the end (first), and by the shifted
    tensor they were read from (last), which is the right one where two shifts have different fills.
    """

    root: fx.Node
    dim: int
    size: Any
    """The row's length T: an int, or the symbol that positions count in."""
    alternatives: list[Pieces]
    version: int = 0
    origin: fx.Node | None = None
    """The call that moved slots, for the report."""
    writes: list[fx.Node] = dataclasses.field(default_factory=list)
    found: Any = None
    """The `Found` for what it holds, once somebody looked."""
    escaped: bool = False
    """Something that is not understood may hold a view of this memory."""

    def replace(self, alternatives: list[Pieces], node: fx.Node) -> None:
        """The memory is written."""
        self.alternatives = alternatives
        self.version += 1
        self.writes.append(node)

    def identity(self) -> Pieces:
        length = position(example(self.root).shape[self.dim], self.size)
        assert length is not None
        return whole(length, Read(Source(self.root, self.version), ZERO))


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """Slots ``[start, stop)`` of a store, as dimension ``dim`` (None: one slot, dimension gone) of a tensor.

    ``base`` is the tensor of all slots that this was cut from, ``chain`` the calls from there to here; ``straight``:
    the tensor has the shape of the store's root but for the cut.
    """

    store: Store
    start: Pos
    stop: Pos
    dim: int | None
    base: fx.Node
    chain: tuple[fx.Node, ...] = ()
    straight: bool = True
    based: bool = True
    """`straight` for ``base``."""

    @property
    def node(self) -> fx.Node:
        """The tensor itself."""
        return self.chain[-1] if self.chain else self.base

    @property
    def complete(self) -> bool:
        return self.start == ZERO and self.stop == position(
            example(self.store.root).shape[self.store.dim], self.store.size
        )


@dataclasses.dataclass(frozen=True)
class Uniform:
    """A tensor that holds one number everywhere (``full_like`` and the like), and is not written so far."""

    value: Any


class Left(NamedTuple):
    """Why a shift is left alone: a code of packpass/decisions/codes.py, and a reason for people."""

    code: str
    reason: str


TOKEN_DTYPES = (torch.int32, torch.int64)
"""Those of tokens, and of whole numbers that say where slots are."""
UNDEFINED = object()
"""What ``torch.empty`` holds."""


def position(size: Any, row: Any) -> Pos | None:
    """``size`` (an int or a symbol) as a position in a row of ``row`` slots."""
    if isinstance(size, fx.Node):
        size = example(size)
    if isinstance(size, bool):
        return None
    if isinstance(size, int):
        return Pos(0, size)
    if isinstance(size, torch.SymInt) and size.node.expr.is_Integer:
        return Pos(0, int(size.node.expr))  # fixed by a guard
    if not isinstance(size, torch.SymInt) or not isinstance(row, torch.SymInt):
        return None
    difference = size.node.expr - row.node.expr
    return Pos(1, int(difference)) if difference.is_Integer else None


def fixed(number: Any) -> Any:
    """An integer, also where a guard has fixed a symbol to it; anything else is itself."""
    at = position(number, None)
    return at.c if at is not None else number


def new_store(root: fx.Node, dim: int, size: Any, alternatives: list[Pieces], origin: fx.Node | None) -> View:
    store = Store(root, dim, size, alternatives, origin=origin)
    return view_of(store)


def view_of(store: Store) -> View:
    """All of a store, as its root."""
    length = position(example(store.root).shape[store.dim], store.size)
    assert length is not None
    return View(store, ZERO, length, store.dim, store.root)


def from_right(view: View) -> int:
    """The row's dimension, counted from the last."""
    return (view.dim or 0) - int(example(view.node).dim())


def is_plain(store: Store) -> bool:
    """Does the store hold just itself, nothing that was moved?"""
    return source_of(store.alternatives[0]) is not None


def constant(value: Any, dtype: torch.dtype) -> Const:
    """A number as a tensor of ``dtype`` holds it."""
    if value is UNDEFINED:
        return Const(value)
    return Const(torch.empty((), dtype=dtype).fill_(value).item())


def recast(pieces: Pieces, before: torch.dtype, after: torch.dtype) -> Pieces | None:
    """The content after a conversion: numbers are converted, a row that is read is converted once, at its source."""
    if before == after:
        return pieces
    out = []
    for piece in pieces:
        content = piece.content
        if isinstance(content, Const):
            content = constant(content.value, after)
        elif isinstance(content, Read):
            if example(content.source.node).dtype != before:
                return None
        out.append(Piece(piece.start, piece.stop, content))
    return tuple(out)
