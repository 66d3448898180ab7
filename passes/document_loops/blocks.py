"""Blocks on the diagonal of a square: masks that say which slots belong to one document.

::

    for s, e in spans:
        mask[..., s:e, s:e] = 0                          # True, a bias, any one number

becomes a comparison of the documents of rows and columns. What is written must be the same for all documents (a number,
or numbers by the distance of two slots), so that it is read nowhere and once is enough.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.dense_masks import Cells, outside_of
from passes.document_loops.emit import stored
from passes.document_loops.indices import constant_entry, expand_index
from passes.document_loops.integers import FULL, Affine
from passes.document_loops.machine import OPAQUE, Machine, Store, selection
from passes.document_loops.pairs import Band, Pairs, constant
from passes.document_loops.terms import Assign, Outside, Term
from passes.document_loops.windows import window_of
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass
_KEY = "block"
_MOST = 64
"""Distances that a square of numbers may tell apart."""


@dataclasses.dataclass(frozen=True, eq=False)
class Block(Term):
    """Every document's square of an outer tensor, before the loop, along ``dim`` and ``columns`` (negative).

    ``index`` selects along the other dimensions.
    """

    node: fx.Node
    index: tuple[Any, ...]
    dim: int
    columns: int

    def written(self, emitter: Emitter, value: Any) -> fx.Node:
        """The outer tensor with every document's square filled."""
        base = emitter.selected(self)
        ids = emitter.call(_ops.segment_ids.default, emitter.cu, emitter.total)
        rows, columns = (emitter.along(ids, dim) for dim in (self.dim, self.columns))
        same = emitter.call(
            torch.logical_and,
            emitter.call(operator.eq, rows, columns),
            emitter.along(emitter.mask(FULL), self.dim),
        )
        new = _by_distance(emitter, self, value, base) if isinstance(value, Banded) else emitter.fitted(value, base)
        return emitter.call(torch.where, same, new, base)

    def cells(self, value: Any) -> Cells | None:
        """What the mask holds after the loop; None if that is not the same for all slots alike."""
        outside, dtype = outside_of(self.node), example(self.node).dtype
        if outside is None or not isinstance(value, (bool, int, float, Banded)):
            return None
        inside = Band(torch.tensor(value.numbers, dtype=dtype)) if isinstance(value, Banded) else constant(value, dtype)
        turned = self.dim > self.columns
        return Cells(inside.turned() if turned else inside, outside)


@dataclasses.dataclass(frozen=True)
class Banded:
    """A square that holds the same number for all slots of the same distance; as `Band` has them."""

    numbers: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Diagonal(Term):
    """Squares of the documents one behind the other, as ``block_diag`` puts them together; 0 beside them."""

    square: Banded
    dtype: torch.dtype
    dim: int = 0

    def emit(self, emitter: Emitter) -> fx.Node:
        """[T, T], where T is how many slots the documents have."""
        ids = emitter.call(_ops.segment_ids.default, emitter.cu, emitter.total)
        same = emitter.call(operator.eq, emitter.along(ids, -2), ids)
        held = _distances(emitter, -2, -1, self.square, self.dtype)
        return emitter.call(torch.where, same, held, stored(0, self.dtype))


def diagonal(value: Any, node: fx.Node) -> Diagonal | None:
    """What a document appends to a list of squares; None if it is none of a known kind."""
    if not isinstance(value, Pairs) or value.rank != 2:
        return None
    square = banded_square(value, node)
    return Diagonal(square, example(node).dtype) if isinstance(square, Banded) else None


def _by_distance(emitter: Emitter, block: Block, value: Banded, base: fx.Node) -> fx.Node:
    return _distances(emitter, block.dim, block.columns, value, example(base).dtype)


def _distances(emitter: Emitter, dim: int, other: int, value: Banded, dtype: torch.dtype) -> fx.Node:
    """[T, T]: the numbers, by how far slots are apart."""
    slots = emitter.call(torch.arange, emitter.total, device=emitter.device)
    rows, columns = (emitter.along(slots, d) for d in (dim, other))
    return by_distance(emitter, emitter.call(torch.sub, rows, columns), value, dtype)


def by_distance(emitter: Emitter, distance: fx.Node, value: Banded, dtype: torch.dtype) -> fx.Node:
    """The numbers, where the distance of two slots is what a tensor of integers says."""
    reach = len(value.numbers) // 2
    made = emitter.call(torch.full_like, distance, stored(value.numbers[0], dtype), dtype=dtype)
    for i in range(1, len(value.numbers)):
        if value.numbers[i] != value.numbers[i - 1]:
            beyond = emitter.call(operator.ge, distance, i - reach)
            made = emitter.call(torch.where, beyond, stored(value.numbers[i], dtype), made)
    if example(made).dtype != dtype:
        made = emitter.call("to", made, dtype, method=True)
    return made


def banded_square(value: Pairs, node: fx.Node) -> Any:
    """A mask of the document's slots as what is written; anything else as it is, which is refused."""
    what = value.read(node)
    if not isinstance(what, Band) or value.dims != (-2, -1) or what.values.shape[0] > _MOST:
        return value
    return Banded(tuple(what.values.tolist()))


def write_block(machine: Machine, node: fx.Node, base: fx.Node, index: Any, value: Any) -> bool:
    """Note ``base[index] = value`` if that is a block of each document; False if it is something else."""
    outer, fake = machine.value(base), example(base)
    if not isinstance(outer, Outside) or outer.node is None or not isinstance(index, tuple) or None in index:
        return False
    entries = expand_index(index, fake.dim(), node)
    cuts = [d for d, entry in enumerate(entries) if isinstance(entry, slice) and _depends(entry)]
    if len(cuts) != 2 or any(entries[d].step not in (None, 1) for d in cuts):
        return False
    windows = [window_of(machine, entries[d].start, entries[d].stop, node, squares=True) for d in cuts]
    rest = [entry for d, entry in enumerate(entries) if d not in cuts]
    if windows != [FULL, FULL] or not all(constant_entry(machine, entry) for entry in rest):
        raise Refused("two-packed-dims", "two dimensions are cut by boundaries in different ways in one index", node)
    if isinstance(value, Affine) and value.is_const:
        value = value.const
    if isinstance(value, Pairs):
        value = banded_square(value, node)
    scalar = isinstance(value, (bool, int, float, Banded)) or (
        isinstance(value, Outside) and not machine.fake(value).dim()
    )
    if value is OPAQUE or not scalar:
        raise Refused("two-packed-dims", "a square of each document is set to something else than one number", node)
    frozen, (dim, columns), _ = selection(entries, *cuts)
    key = (outer.node, frozen, dim, columns, _KEY)
    if key in machine.outer:
        raise Refused("two-packed-dims", "a square of each document is written twice in one iteration", node)
    row = machine.intern(Block(outer.node, frozen, dim, columns))
    store = machine.outer[key] = Store(row, outer=row)
    store.term = machine.intern(Assign(row, FULL, value, dim))
    store.version = 1
    return True


def taken_square(machine: Machine, outer: fx.Node, entries: list[Any], cuts: list[int]) -> Any:
    """The number that was written to the square of a tensor, which is forgotten here: the same memory will be noted
    otherwise. None if there was none, or another thing than a number."""
    frozen, (dim, columns), _ = selection(entries, *cuts)
    for key in [(outer, frozen, *dims, _KEY) for dims in ((dim, columns), (columns, dim))]:
        written = machine.outer[key].term if key in machine.outer else None
        if isinstance(written, Assign) and isinstance(written.value, (bool, int, float)):
            del machine.outer[key]
            return written.value
    return None


def _depends(cut: slice) -> bool:
    return any(isinstance(bound, fx.Node) for bound in (cut.start, cut.stop))
