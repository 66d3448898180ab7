"""Every so many slots of a document, or the means of so many: ``x[s:e][::2]``, ``F.avg_pool1d(x[s:e].T, 2, 2)``.

Before, for every document::

    out.append(F.avg_pool1d(x[s:e].T, 2).T)

After::

    cu = cumsum(lengths // 2)                          # [N + 1], what the documents have become
    places = segment_spread(begins, cu) + 2 * position_ids(cu)
    out = (x[places] + x[places + 1]) / 2

Nothing is read beyond a document: of its last slots, those that do not fill a window are left out, as eager does.

Does not handle: windows that are padded, or counted beyond the end (``ceil_mode``), parts of documents.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import argument, example
from passes.document_loops.integers import FULL, Affine, Derived, Reach
from passes.document_loops.machine import Machine, Segment
from passes.document_loops.op_names import label
from passes.document_loops.parts import Pieces, own_length
from passes.document_loops.rules import rule
from passes.document_loops.terms import Term
from passes.document_loops.uneven_row import Part, Uneven
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass
_LOW = (torch.bfloat16, torch.float16)


@dataclasses.dataclass(frozen=True, eq=False)
class Spaced(Term):
    """The means of ``taps`` slots of every document from ``start``, ``start + step``, ... on: a row of their own.

    ``row`` says how many each document has, as if they were its first slots."""

    row: Uneven
    start: int
    step: int
    taps: int
    dim: int

    @property
    def reach(self) -> Reach:
        """The documents that are among them."""
        return self.row.reach

    def boundaries(self, emitter: Emitter) -> fx.Node:
        """Where in the row each document begins: [N + 1]."""
        return self.row.boundaries(emitter)

    def emit(self, emitter: Emitter) -> fx.Node:
        """The row, gathered from that of the documents."""
        of = self.row.of[0]
        assert isinstance(of, Term)
        source = emitter.node(of)
        cu = boundaries_of(emitter, self)
        total = emitter.call(_ops.covered_length.default, cu)
        begins = emitter.call("long", emitter.call(torch.add, emitter.cu, self.start), method=True)
        places = emitter.call(_ops.segment_places.default, cu, emitter.call(torch.zeros_like, begins), total)
        places = emitter.call(torch.mul, places, self.step)
        places = emitter.call(torch.add, emitter.call(_ops.segment_spread.default, begins, cu, total), places)
        taps = [emitter.call(torch.add, places, tap) if tap else places for tap in range(self.taps)]
        slots = [emitter.call(_ops.gather_places.default, source, at, self.dim) for at in taps]
        if len(slots) == 1:
            return slots[0]
        dtype = example(source).dtype
        if dtype in _LOW:
            slots = [emitter.call("float", one, method=True) for one in slots]
        total_of = functools.reduce(lambda one, other: emitter.call(torch.add, one, other), slots)
        mean = emitter.call(torch.div, total_of, self.taps)
        return emitter.call("to", mean, dtype, method=True) if dtype in _LOW else mean


def spaced(
    machine: Machine, node: fx.Node, value: Any, start: int, step: int, taps: int = 1, missing: int = 0
) -> Pieces:
    """Such slots of a whole document, but for some ``missing`` at its end; raises `Refused`."""
    if not isinstance(value, Segment) or value.window != FULL or not value.store.exact or machine.boundaries is None:
        raise Refused("no-rule", f"{label(node)} of a part of a document has no rule", node)
    count = own_length(machine).plus(Affine.of(step - start - taps - missing))
    count = Affine.of(Derived(operator.floordiv, (count, Affine.of(step))))
    if start or taps + missing != step:
        count = Affine.of(Derived(max, (count, Affine())))
    row = Uneven((machine.read(value, node),), (Part(Affine(), count),), machine.reach, value.dim, example(node).dtype)
    return Pieces(machine.intern(Spaced(machine.intern(row), start, step, taps, value.dim)), value.rank)


ROWS = (Uneven, Spaced)
"""Documents that have become longer or shorter, in a row of their own with boundaries of its own."""


def boundaries_of(emitter: Emitter, documents: Uneven | Spaced) -> fx.Node:
    """Their boundaries in the row that they are together: made once, in front of the loop."""
    return emitter.once(("boundaries", documents), lambda: documents.boundaries(emitter))


@rule("avg_pool1d")
def _avg_pool1d(machine: Machine, node: fx.Node) -> Any:
    value = machine.value(node.args[0])
    kernel = _single(argument(node, 1, "kernel_size"))
    step = _single(argument(node, 2, "stride")) or kernel
    padding = _single(argument(node, 3, "padding", 0))
    if kernel is None or step is None or padding != 0 or argument(node, 4, "ceil_mode", False):
        raise Refused("no-rule", f"{label(node)} with padding, or beyond the end, has no rule", node)
    if not isinstance(value, Segment) or value.dim != -1:
        raise Refused("no-rule", f"{label(node)} along another dimension than a document's slots has no rule", node)
    if value.window == FULL and machine.boundaries is not None:
        message = "packpass: a document has fewer slots than the window that they are averaged over"
        machine.require(own_length(machine), "ge", Affine.of(kernel), message)
    return spaced(machine, node, value, 0, step, kernel)


def _single(size: Any) -> int | None:
    """A number that may stand in a tuple of one."""
    if isinstance(size, (tuple, list)) and len(size) == 1:
        size = size[0]
    return size if type(size) is int else None
