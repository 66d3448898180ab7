"""Depthwise causal convolutions of a row: sums of shifted rows, without a batch of documents around them.

``conv1d(x, w, padding=K - 1, groups=C)[..., :T]`` and ``conv1d(pad(x, (K - 1, 0)), w, groups=C)`` reach back a few
slots. Each tap is a product with a row that is shifted and 0 where a document has not begun, which costs no more than
the convolution itself and needs no read of the boundaries on the host.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import fx

from packpass.ops._document_taps import document_taps
from packpass.semantics import call_of, example, meaning_of, read_inputs
from packpass.semantics.bound_mixers import Convolution, convolution_of, pad_of
from packpass.semantics.meaning import KEPT, Cut
from passes.isolate.boundaries import Boundaries
from passes.isolate.kinds import Row
from passes.isolate.reading import Reading
from passes.isolate.regions import Region

MOST = 16
"""Taps up to which shifted products pay."""


@dataclasses.dataclass(frozen=True)
class Taps:
    """A region that is one depthwise causal convolution; ``left``: how far its first tap reaches back."""

    region: Region
    row: fx.Node
    convolution: Convolution
    left: int


def taps_of(reading: Reading, region: Region) -> Taps | None:
    """The convolution that a region is; None if it is anything else."""
    chain = [n for n in region.nodes if isinstance(example(n), torch.Tensor)]
    # Of others the length alone is asked.
    rows = [row for row in region.entries if any(row in read_inputs(n) for n in chain)]
    if region.states or len(rows) != 1 or len(region.exits) != 1 or chain[-1] is not region.exits[0]:
        return None
    at, left = rows[0], 0
    kind = reading.kinds[at]
    if not isinstance(kind, Row) or kind.dim != example(at).dim() - 1:
        return None
    convolution: Convolution | None = None
    for node in chain:
        pad, conv = pad_of(node), convolution_of(node)
        if pad is not None and convolution is None and pad.x is at:
            whole = isinstance(pad.before, int) and isinstance(pad.after, int) and pad.before >= 0 <= pad.after
            if not whole or pad.fill or pad.dim != kind.dim:
                return None
            left += pad.before
        elif conv is not None and convolution is None and conv.input is at and conv.stride == 1:
            convolution, left = conv, left + conv.padding
        elif not (convolution is not None and _starts(node, at, kind.dim)):
            return None
        at = node
    if convolution is None or not _depthwise(convolution, left) or example(at).dim() != kind.dim + 1:
        return None
    return Taps(region, rows[0], convolution, left)


def _depthwise(convolution: Convolution, left: int) -> bool:
    """Is every channel by itself, and does no tap look ahead?"""
    channels, one, width = example(convolution.weight).shape
    same = convolution.groups == channels == example(convolution.input).shape[-2]
    return bool(one == 1 and same and isinstance(width, int) and width <= MOST and left == width - 1)


def _starts(node: fx.Node, source: fx.Node, dim: int) -> bool:
    """Is a node the first slots of another along its last dimension, and all of it along the others?"""
    call = call_of(node)
    meaning = meaning_of(call)
    if call is None or meaning is None or len(call.operands) != 1 or call.operands[0].node is not source:
        return False
    axes = meaning.relations[0].operands[0] or ()
    if len(axes) != dim + 1 or len(meaning.relations[0].result) != dim + 1:
        return False
    how = axes[dim].how
    first = how == KEPT or (isinstance(how, Cut) and how.step == 1 and isinstance(how.start, int) and how.start == 0)
    order = [loop for axis in axes for loop in axis.loops] == [
        loop for of in meaning.relations[0].result for loop in of
    ]
    return first and order and all(axis.how == KEPT for axis in axes[:dim])


def rewrite(graph: fx.Graph, taps: Taps, boundaries: Boundaries, moved: dict[fx.Node, fx.Node]) -> None:
    """Put the sum of shifted products there. ``moved``: what stands for nodes that are gone, kept up to date."""
    (exit_node,) = taps.region.exits
    positions = boundaries.positions()
    parts = taps.convolution
    with graph.inserting_before(exit_node):
        row, dtype = moved.get(taps.row, taps.row), example(exit_node).dtype
        new = graph.call_function(document_taps, (row, parts.weight, parts.bias, positions, taps.left, dtype))
    new.meta = exit_node.meta.copy()
    moved[exit_node] = new
    exit_node.replace_all_uses_with(new)
    for node in reversed(taps.region.nodes):
        if not node.users:
            graph.erase_node(node)
