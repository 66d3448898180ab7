"""Documents padded by hand: ``row = torch.zeros(width, ...)``, ``row[:n] = x[s:e]``, and ``row`` is what is kept; or
``n = min(e - s, width)`` slots of them, ``row[:n] = x[s : s + n]``.

The tensor that an iteration makes is one value of its document from the moment on that its slots are written, the same
as ``F.pad`` gives. Nothing may look at it before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.semantics import example, op_name
from packpass.semantics.creation import SIZED, uniform
from passes.document_loops.documents import document
from passes.document_loops.elsewhere import own_documents, size_of
from passes.document_loops.emit_shifts import stored
from passes.document_loops.indices import expand_index
from passes.document_loops.integers import FULL, Affine
from passes.document_loops.machine import Machine, Segment
from passes.document_loops.padded import PaddedTo, check_width
from passes.document_loops.terms import LENGTH, Apply, Outside, Term


def pad_by_hand(machine: Machine, node: fx.Node) -> bool:
    """``row[:n] = value``, ``row[width - n :] = document``: is it that? Then ``row`` is a value of the document."""
    base, index, value = node.args
    if not isinstance(base, fx.Node) or not isinstance(index, (slice, tuple)):
        return False
    fill = _fill(machine, base, node)
    if fill is None:
        return False
    fake = example(base)
    entries = expand_index(index, fake.dim(), node)
    cuts = [d for d, entry in enumerate(entries) if entry != slice(None)]
    entry = entries[cuts[0]] if len(cuts) == 1 else None
    width = size_of(fake.shape[cuts[0]], base) if cuts else None
    if not isinstance(entry, slice) or entry.step not in (None, 1) or width is None:
        return False
    left = entry.stop is None
    end = machine.affine(entry.start if left else entry.stop)
    if end is None or (not left and entry.start not in (None, 0)):
        return False
    length = width.plus(end, -1) if left else end
    documents = own_documents(length)
    if documents is None or (machine.boundaries is None and documents.made is not None):
        return False
    if machine.boundaries not in (None, (documents, 0)):
        return False
    term = _slots(machine, node, value, base, cuts[0], left)
    if term is None:
        return False
    machine.use((documents, 0), node)
    if isinstance(machine.value(value), Segment):
        check_width(machine, width, length)
    machine.values[base] = document(machine, PaddedTo(term, term.dim, width, left, fill))
    return True


def _fill(machine: Machine, base: fx.Node, node: fx.Node) -> Any:
    """The number that a tensor holds which the iteration has made, and which nobody has looked at; None if there is no
    such number."""
    name = op_name(base)
    if base not in machine.inside or name not in SIZED or not isinstance(machine.value(base), Outside):
        return None
    if any(user < node for user in base.users):
        return None
    fill = uniform(name, base.args, base.kwargs)
    return stored(fill, example(base).dtype) if isinstance(fill, (bool, int, float)) else None


def _slots(machine: Machine, node: fx.Node, value: Any, base: fx.Node, at: int, left: bool) -> Term | None:
    """The row of what is written, with the dtype that it gets; None if it is something else."""
    fake, new = example(base), machine.value(value)
    dim = at - fake.dim()
    if isinstance(new, Affine) and new.is_const:
        new = new.const
    if isinstance(new, (bool, int, float)) and not left:  # of a longer document, eager writes as many as there are
        shape = tuple(LENGTH if d == at else size for d, size in enumerate(fake.shape))
        kwargs = (("device", fake.device), ("dtype", fake.dtype))
        if all(size is LENGTH or isinstance(size, int) for size in shape):
            made: Term = machine.intern(Apply(torch.full, False, (shape, stored(new, fake.dtype)), kwargs, dim))
            return made
        return None
    if not isinstance(new, Segment) or new.window != FULL or not new.store.exact or new.dim != dim:
        return None
    given = example(value)
    if given.dim() != fake.dim() or given.device != fake.device or given.is_complex():
        return None
    if not all(statically_known_true(given.shape[d] == fake.shape[d]) for d in range(fake.dim()) if d != at):
        return None
    term: Term = machine.read(new, node)
    if given.dtype != fake.dtype:
        term = machine.intern(Apply("to", True, (term, fake.dtype), (), dim))
    return term
