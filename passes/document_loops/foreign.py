"""Documents of two rows, cut by two sets of boundaries, that one loop joins: a caption and the tokens of its image.

::

    torch.cat((text[cu[i] : cu[i + 1]], image[cu2[i] : cu2[i + 1]]))
    for t, x in zip(text.split(lengths), image.split(sizes)): out.append(torch.cat((t, x)))

The loop goes by the boundaries that it uses first, or by those of documents on which it computes. What is cut by others
may be joined to these documents, as it is; whatever else is done to it is refused as before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.elsewhere import own_documents, size_of
from passes.document_loops.indices import constant_entry, expand_index
from passes.document_loops.integers import Affine, Boundaries, Derived
from passes.document_loops.machine import Machine
from passes.document_loops.parts import OtherDocuments, counted
from passes.document_loops.terms import Outside
from passes.document_loops.uneven import Foreign
from passes.document_loops.uneven_row import Each, Part
from passes.refused import Refused


def foreign(machine: Machine, node: fx.Node, base: fx.Node, index: Any, refused: Refused) -> Foreign | None:
    """``base[index]``, where one slice goes from one number of the document to another."""
    value, rank = machine.value(base), example(base).dim()
    if not isinstance(value, Outside) or example(node).dim() != rank:
        return None
    entries = expand_index(index, rank, node)
    cuts = [d for d, entry in enumerate(entries) if entry != slice(None)]
    entry = entries[cuts[0]] if len(cuts) == 1 else None
    if not isinstance(entry, slice) or entry.step not in (None, 1) or constant_entry(machine, entry):
        return None
    ends = [machine.affine(end) if isinstance(end, fx.Node) else None for end in (entry.start, entry.stop)]
    bounds = [end.bound() if end is not None else None for end in ends]
    if any(bound is None or bound[1] for bound in bounds) or None in ends:
        return _between(machine, value, entry, cuts[0], rank, refused)
    first, second = (bound[0] for bound in bounds if bound is not None)
    if first.of != second.of or first.of.lengths or first.of.made is not None or (first.k, second.k) != (0, 1):
        return _between(machine, value, entry, cuts[0], rank, refused)
    part = Part(Affine.of(first), Affine.of(second), each=Each.ROW)
    return Foreign(value, part, rank, cuts[0] - rank, first.of, refused)


def _between(machine: Machine, value: Outside, cut: slice, at: int, rank: int, refused: Refused) -> Foreign | None:
    """Slots of a row from one number on up to another, as Python counts."""
    extent = size_of(machine.fake(value).shape[at], refused.node) if value.node and refused.node else None
    ends = None if extent is None else counted(machine, cut, extent)
    documents = None if ends is None else own_documents(ends[1].plus(ends[0], -1))
    if isinstance(refused, OtherDocuments):
        documents = refused.documents
    if ends is None or documents is None:
        return None
    stop = ends[1] if cut.start is None or cut.stop is None else Affine.of(Derived(max, ends))
    return Foreign(value, Part(ends[0], stop, each=Each.ROW), rank, at - rank, documents, refused)


def foreign_split(
    value: Outside, lengths: fx.Node, rank: int, dim: int, documents: Boundaries, refused: Refused
) -> Foreign:
    """A part of ``x.split(lengths, dim)``."""
    part = Part(Affine(), Affine(), each=Each.ROW, lengths=lengths)
    return Foreign(value, part, rank, dim % rank - rank, documents, refused)


def refuse_foreign(machine: Machine, node: fx.Node, joins: bool) -> None:
    """Such a part is joined to others, and asked for its size; nothing else."""
    for arg in node.all_input_nodes:
        value = machine.values.get(arg)
        if isinstance(value, Foreign) and not joins and isinstance(example(node), torch.Tensor):
            raise OtherDocuments(value.refused, value.documents, parts=False)
