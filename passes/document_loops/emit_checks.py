"""What must hold of boundaries and of numbers of documents, checked in front of the whole-row form of a loop."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import statically_known_true
from packpass.semantics import example
from packpass.semantics.effects import mutated_after
from passes.document_loops.boundaries import check_split
from passes.document_loops.emit import Emitter
from passes.document_loops.emit_documents import condition
from passes.document_loops.find import Decided
from passes.document_loops.integers import FULL, Condition
from passes.document_loops.machine import Segment

_ops = torch.ops.packpass


def joined_lists(decided: Decided) -> list[fx.Node]:
    """Rows that lists of whole documents are joined to: all other rows have other lengths than the documents'."""
    lists = [c for c, v in decided.appended if isinstance(v, Segment) and v.window == FULL and v.store.exact]
    return [user for collect in lists for user in collect.users if user.target is markers.RAGGED_CAT]


def emit_checks(emitter: Emitter, decided: Decided, total: Any) -> None:
    """Boundaries are checked once per loop, without waiting for the device; the user's own checks stay."""
    begin, check_op = decided.loop.iterations[0][0], _ops.check_cu_seqlens.default
    _ensure_boundaries(emitter)
    if not any(
        n.target is check_op
        and n.args == (emitter.cu, total)
        and n < begin
        and not mutated_after(emitter.graph, emitter.cu, n, begin)
        for n in emitter.graph.nodes
    ):
        emitter.call(check_op, emitter.cu, total)
    extent = example(total) if isinstance(total, fx.Node) else total
    covers = decided.covers_row or any(
        statically_known_true(example(cat).shape[int(str(cat.args[1]))] == extent) for cat in joined_lists(decided)
    )
    if covers:
        cu = emitter.cu
        span = emitter.call(operator.sub, emitter.call(operator.getitem, cu, -1), emitter.call(operator.getitem, cu, 0))
        fills = emitter.call(operator.eq, span, total)
        emitter.call(
            torch._assert_async, fills, "packpass: the documents in cu_seqlens do not fill the packed dimension"
        )
    for row, lengths, dim in decided.filled:
        check_split(emitter.call, row, lengths, dim)
    for check in decided.checks:
        holds = condition(emitter, Condition(check.left, check.op, check.right))
        if isinstance(example(holds), torch.Tensor):
            emitter.call(torch._assert_async, emitter.for_every_document(holds, check.reach), check.message)
        else:
            emitter.call(torch._check, holds)


def _ensure_boundaries(emitter: Emitter) -> None:
    """How many boundaries there are may be data, and none at all: slices of nothing, of which Python makes no
    documents. Kernels would read the first one nevertheless. Of no documents, eager makes no gradients either."""
    size = example(emitter.cu).shape[0]
    if not isinstance(size, int) and not statically_known_true(size >= 2):
        some = emitter.call(operator.ge, emitter.call(torch.ops.aten.sym_size.int, emitter.cu, 0), 2)
        emitter.call(torch.ops.aten._assert_scalar.default, some, markers.NO_DOCUMENTS)
