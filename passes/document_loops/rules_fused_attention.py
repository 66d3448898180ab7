"""Rules for ``scaled_dot_product_attention`` inside a document: one call of `varlen_attention` for all.

::

    attend(q[s:e], k[s:e], v[s:e])                       # a document with itself
    attend(q[s:e], k[cu2[i] : cu2[i + 1]], v[...])       # with the slots of another row, cut by other boundaries
    attend(latents, k[s:e], v[s:e])                      # as many queries for each document: pooled, resampled
    attend(q[s:e], k[i], v[i])                           # as many keys for each document: a caption of one length

Tensors are ``[H, L, D]`` or ``[1, H, L, D]``. Of queries or keys of which each document has as many, these lie one
behind the other, so that their boundaries are multiples of that number.

Does not handle: attention masks (`rules_attention` knows masks of pairs), dropout, several rows, causal attention to
other slots than the document's own.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.ops._varlen_attention_gpu import takes
from packpass.semantics import argument, example
from passes.document_loops.documents import as_term, document, is_per_document
from passes.document_loops.emit_documents import by_heads, by_slots
from passes.document_loops.foreign import attended
from passes.document_loops.integers import FULL, Affine
from passes.document_loops.machine import Machine, Segment
from passes.document_loops.parts import own_length
from passes.document_loops.rules import documents, outside_call, rule
from passes.document_loops.rules_tokenwise import only_outside
from passes.document_loops.terms import Attention, Outside
from passes.document_loops.uneven import Foreign
from passes.document_loops.uneven_row import Part
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass
_NAMES = ("query", "key", "value")


@dataclasses.dataclass(frozen=True)
class Each:
    """Queries or keys that each document has as many of; ``shared``: the same for all."""

    slots: int
    shared: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Crossed(Attention):
    """Attention between two sides of which one is not the documents of the loop.

    ``queries``, ``keys``: None for slots of the document itself; `Each`; of keys, where they lie in another row."""

    queries: Each | None = None
    keys: Each | Part | None = None

    def emit(self, emitter: Emitter) -> fx.Node:
        """A row like the queries; of queries that each document has, what comes of them: ``[N + 1, *shape]``."""
        q, k, v = (
            self._row(emitter, term, side)
            for term, side in ((self.q, self.queries), (self.k, self.keys), (self.v, self.keys))
        )
        bounds = self._of_queries(emitter), self._of_keys(emitter, k, v)
        out = emitter.call(_ops.varlen_attention.default, q, k, v, *bounds, False, self.scale)
        if self.queries is not None:
            out = emitter.call("unflatten", out, 0, (-1, self.queries.slots), method=True)
        return by_heads(emitter, out, self.rank)

    def _row(self, emitter: Emitter, term: Any, side: Any) -> fx.Node:
        """A side as the op takes it: [slots, H, D]."""
        row = by_slots(emitter, emitter.node(term), self.rank)
        if not isinstance(side, Each):
            return row
        if side.shared:
            count = emitter.call(operator.add, emitter.documents(), 1)
            row = emitter.call("expand", row, count, *[-1] * example(row).dim(), method=True)
        made: fx.Node = emitter.call("flatten", row, 0, 1, method=True)
        return made

    def _of_queries(self, emitter: Emitter) -> fx.Node:
        return self._of_each(emitter, self.queries) if self.queries is not None else self._with_one_more(emitter)

    def _of_keys(self, emitter: Emitter, k: fx.Node, v: fx.Node) -> fx.Node:
        if isinstance(self.keys, Part):
            return self.keys.boundaries(emitter, (k, v), 0)
        return self._of_each(emitter, self.keys) if self.keys is not None else self._with_one_more(emitter)

    def _of_each(self, emitter: Emitter, side: Each) -> fx.Node:
        """Boundaries of N + 1 documents, of which the last is none."""
        made: fx.Node = emitter.call(operator.mul, self._numbers(emitter), side.slots)
        return made

    def _with_one_more(self, emitter: Emitter) -> fx.Node:
        """The boundaries of the row; with those of a document without slots, if the other side has one more."""
        if isinstance(self.keys, Part):
            return emitter.cu
        numbers = emitter.call(torch.clamp, self._numbers(emitter), max=emitter.documents())
        made: fx.Node = emitter.call(torch.index_select, emitter.cu, 0, numbers)
        return made

    def _numbers(self, emitter: Emitter) -> fx.Node:
        """0 .. N + 1."""
        count = emitter.call(operator.add, emitter.documents(), 2)
        made: fx.Node = emitter.call(torch.arange, count, device=emitter.device)
        return made


@documents("scaled_dot_product_attention")
def _of_own(machine: Machine, node: fx.Node) -> Any:
    return _attention(machine, node)


@rule("scaled_dot_product_attention")
def _attention(machine: Machine, node: fx.Node) -> Any:
    """Queries, keys and values of one document, or of one and another."""
    if only_outside(machine, node):
        return outside_call(machine, node)
    nodes = [argument(node, i, n) for i, n in enumerate(_NAMES)]
    values, causal, scale = [machine.value(n) for n in nodes], *_settings(node)
    keys = attended(machine, node, values) if any(isinstance(v, Foreign) for v in values) else None
    rank = _rank(node, [example(n) for n in nodes])
    sides = [_side(machine, n, v, keys) for n, v in zip(nodes, values, strict=True)]
    if sides == [None] * 3:
        q, k, v = (machine.read(value, node) for value in values)
        return machine.fresh(Attention(q, k, v, causal, scale, rank), rank)
    if causal:
        raise _refused(node, "causal attention of a document to slots that are not its own has no rule")
    if sides[1] != sides[2] or (isinstance(sides[0], Each) and isinstance(sides[1], (Each, Part))):
        raise _refused(node, "attention between what is not of the document on both sides has no rule")
    if isinstance(sides[0], Each) and not sides[0].shared:  # of no keys eager makes NaN of queries that are NaN
        machine.require(own_length(machine), "ge", Affine.of(1), "packpass: a document has a query and no keys")
    q, k, v = (_term(machine, n, value, node) for n, value in zip(nodes, values, strict=True))
    made = Crossed(q, k, v, False, scale, rank, queries=sides[0], keys=sides[1])
    if sides[0] is None:
        return machine.fresh(made, rank)
    return document(machine, dataclasses.replace(made, dim=0))


def _refused(node: fx.Node, why: str) -> Refused:
    return Refused("no-rule", why, node)


def _settings(node: fx.Node) -> tuple[bool, float | None]:
    """Whether it is causal, and its scale, if there is nothing else."""
    mask, dropout = argument(node, 3, "attn_mask"), argument(node, 4, "dropout_p", 0.0)
    causal, scale = argument(node, 5, "is_causal", False), argument(node, 6, "scale")
    if mask is not None or dropout or not isinstance(causal, bool) or not isinstance(scale, (int, float, type(None))):
        raise _refused(node, "attention with a mask, dropout or a scale that is no number has no rule")
    return causal, None if scale is None else float(scale)


def _rank(node: fx.Node, fakes: list[torch.Tensor]) -> int:
    """How many dimensions the three have, if the op takes what they hold."""
    like, rank = fakes[0], fakes[0].dim()
    if rank not in (3, 4) or any(fake.dim() != rank for fake in fakes):
        raise _refused(node, "attention that is not over [heads, tokens, features] has no rule")
    if any(rank == 4 and not (isinstance(fake.shape[0], int) and fake.shape[0] == 1) for fake in fakes):
        raise _refused(node, "attention of several rows at once has no rule")
    if fakes[2].shape[-1] != like.shape[-1] or not takes(like.device.type, like.dtype, like.shape[-1]):
        raise _refused(node, "there is no packed attention for these dtypes and sizes")
    own = [like, fakes[2]] if not argument(node, 7, "enable_gqa", False) else [fakes[2]]
    if any(fake.shape[-3] != fakes[1].shape[-3] for fake in own):
        raise _refused(node, "attention with other heads for keys than for queries has no rule")
    return rank


def _side(machine: Machine, arg: fx.Node, value: Any, keys: Part | None) -> Any:
    """What a side is: None for slots of the document itself."""
    fake = example(arg)
    if isinstance(value, Segment) and value.dim == -2 and value.window == FULL and value.store.exact:
        return None
    if isinstance(value, Foreign) and value.dim == -2:
        return keys
    if all(type(size) is int for size in fake.shape) and fake.shape[-2]:
        if isinstance(value, Outside) and not machine.by_rows:
            return Each(fake.shape[-2], True)
        if is_per_document(value):
            return Each(fake.shape[-2], False)
    raise _refused(arg, "attention between a document and something else has no rule")


def _term(machine: Machine, arg: fx.Node, value: Any, node: fx.Node) -> Any:
    if isinstance(value, Foreign):
        return value.of
    if isinstance(value, Segment):
        return machine.read(value, node)
    return value if isinstance(value, Outside) else as_term(machine, arg, node)
