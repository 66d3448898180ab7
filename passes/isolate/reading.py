"""What every value of a graph is to the row: does it hold one thing per token, or have tokens been mixed?

A value is `PLAIN` (nothing of the row), `SIZED` (depends on the row's length only: masks of positions, tables),
`BOUNDED` (made of the boundaries), a `Row` (slot i is token i's, along one dimension) or `MIXED`. An operation on rows
that is not token by token, as `packpass.semantics` has it, *mixes*; its result is a row again as soon as it has exactly
one dimension of the row's length (an *exit*), which is a guess that `passes.isolate.trial` puts to the test.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from packpass.layout import Layouts, Packing
from packpass.layout.attention import attention as varlen_call
from packpass.layout.sources import belongs_to_module, source_name
from packpass.semantics import blank, call_of, example, family_of, meaning_of, op_name, read_inputs, storage
from packpass.semantics.bound_mixers import pad_of
from packpass.semantics.effects import written_inputs
from packpass.semantics.inner_graphs import subgraphs
from packpass.semantics.meaning import KEPT, Axis, Cut, Looked, Padded, Relation, same_size
from passes.isolate.arguments import from_the_end, numbers_of
from passes.isolate.kinds import BOUNDED, MIXED, PLAIN, SIZED, Aligned, Merged, Restart, Row
from passes.isolate.lengths import Lengths, lengths_of, settled
from passes.isolate.memory import Written
from passes.refused import Refused


class Reading:
    """The kinds of all nodes of one graph.

    ``inside``: nodes whose results are known not to be rows again although they have the shape. ``by_document``: nodes
    that somebody else makes stop at documents, with the packed dimension of what they return. ``handed``:
    kinds of the inputs of a subgraph. ``apart``: calls that merge tokens with something, and whose result is not read
    as `Merged`; more are found here.
    """

    def __init__(
        self,
        gm: Any,
        layouts: Layouts,
        packing: Packing,
        length: Any,
        inside: frozenset[fx.Node] = frozenset(),
        by_document: dict[fx.Node, int] | None = None,
        handed: dict[fx.Node, Any] | None = None,
        apart: set[fx.Node] | None = None,
    ) -> None:
        self.graph, self.layouts, self.packing, self.length = gm.graph, layouts, packing, settled(length)
        length = self.length
        self.gm, self.handed = gm, handed or {}
        self.inside, self.by_document = inside, by_document or {}
        self.apart = set[fx.Node]() if apart is None else apart
        self.memory: set[Any] = set()
        self.bounded: set[Any] = set()
        self.written = Written(self.graph)
        self._lengths: Lengths | None = None
        self._equal: dict[str, bool] = {}
        self.symbols = length.node.expr.free_symbols if isinstance(length, torch.SymInt) else frozenset()
        self._clear()

    def _clear(self) -> None:
        self.kinds: dict[fx.Node, Any] = {}
        self.mixing: list[fx.Node] = []
        """Operations that mix slots of rows."""
        self.exits: list[fx.Node] = []
        self.aligned: list[Aligned] = []
        self.no_pads: dict[fx.Node, fx.Node] = {}
        """Pads of the row that are none where the code is good for its length, and what they would pad."""

    def run(self) -> Reading:
        while True:
            try:
                self._clear()
                for node in self.graph.nodes:
                    if node.op != "output":
                        self.kinds[node] = self._kind(node)
                return self
            except Restart:
                continue

    # === Sizes ==================================================================================================

    def of_length(self, size: Any) -> bool:
        """Is a size the row's length?"""
        size = settled(size)
        if same_size(size, self.length):
            return True
        if not (isinstance(size, torch.SymInt) and self.symbols and self.touches(size)):
            return False
        if str(size) not in self._equal:
            self._lengths = self._lengths or lengths_of(self.length)[-1]
            self._equal[str(size)] = self._lengths.equal(size)
        return self._equal[str(size)]

    def touches(self, size: Any) -> bool:
        """Does a size, or one of a shape, depend on the row's length?"""
        if isinstance(size, (tuple, list)):
            return any(self.touches(one) for one in size)
        size = settled(size)
        if isinstance(size, torch.SymInt):
            return bool(size.node.expr.free_symbols & self.symbols)
        return not self.symbols and isinstance(size, int) and size == self.length

    def row_dim(self, value: Any) -> int | None:
        """The one dimension of the row's length, if no other depends on it."""
        if not isinstance(value, torch.Tensor):
            return None
        dims = [d for d, size in enumerate(value.shape) if self.touches(size)]
        return dims[0] if len(dims) == 1 and self.of_length(value.shape[dims[0]]) else None

    # === Kinds ==================================================================================================

    def _kind(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._input(node)
        if node.op == "get_attr":
            return PLAIN
        if node in self.by_document:
            return Row(self.by_document[node])
        kinds = [self.kinds[n] for n in read_inputs(node)]
        flat = [k for kind in kinds for k in (kind if isinstance(kind, tuple) else (kind,))]
        tokens = any(isinstance(k, (Row, Merged)) or k is MIXED for k in flat)
        if not tokens:
            return self._without_tokens(node, flat)
        self._no_length_in_it(node)
        if op_name(node) == "getitem" and isinstance(example(node.args[0]), (tuple, list)):
            base: Any = node.args[0]
            item: Any = node.args[1]
            found = self.kinds[base]
            return found[item] if isinstance(found, tuple) else self._mixed(node)
        if BOUNDED in flat or varlen_call(node) is not None or op_name(node).startswith("packpass::"):
            self.no_merged(flat)
            return self._aware(node)
        if MIXED not in flat:
            kind = self._inner(node) or self.token_by_token(node)
            if kind is not None:
                return kind
        self.no_merged(flat)
        return self._mixing(node, mixes=MIXED not in flat)

    def no_merged(self, kinds: Iterable[Any]) -> None:
        """Raises `Restart` if tokens that are merged with something meet a call that is not token by token."""
        for kind in kinds:
            if isinstance(kind, Merged) and kind.by in self.kinds:
                self.apart.add(kind.by)
                raise Restart

    def _input(self, node: fx.Node) -> Any:
        if node in self.handed:
            return self.handed[node]
        value = example(node)
        if not isinstance(value, torch.Tensor):
            return SIZED if self.touches(value) else PLAIN
        if node in (self.packing.boundaries, self.packing.padded):
            return BOUNDED
        source = source_name(node)
        if isinstance(value, torch.nn.Parameter) or (source is not None and belongs_to_module(source)):
            return PLAIN
        packed = self.layouts.packed_dim(node)
        dim = packed[0] if packed is not None else self.row_dim(value)
        if dim is not None:
            return Row(dim)
        return MIXED if any(self.touches(size) for size in value.shape) else PLAIN

    def _without_tokens(self, node: fx.Node, kinds: list[Any]) -> Any:
        value = example(node)
        if BOUNDED in kinds:
            memories = {storage(n) for n in written_inputs(node) if self.kinds[n] is not BOUNDED} - {None}
            if memories - self.bounded:
                self.bounded |= memories
                raise Restart
        if not isinstance(value, torch.Tensor):
            self._not_fixed(node, value, kinds)
            return SIZED if SIZED in kinds or self.touches(value) else PLAIN
        if BOUNDED in kinds or storage(node) in self.bounded:
            return BOUNDED
        if storage(node) in self.memory:
            return MIXED
        return SIZED if SIZED in kinds or any(self.touches(size) for size in value.shape) else PLAIN

    def _not_fixed(self, node: fx.Node, value: Any, kinds: list[Any]) -> None:
        """Raises `Refused` for a number such as ``math.log(T)``, of which torch has made a constant of the code."""
        if SIZED in kinds and not self.symbols and isinstance(value, (float, torch.SymFloat)):
            raise Refused(
                "mixes-documents",
                f"{op_name(node) or node.name} computes a number from how long the row is, and torch has fixed it: a "
                "document is not as long",
                node,
            )

    def _no_length_in_it(self, node: fx.Node) -> None:
        """Raises `Refused` for a call on tokens that computes with the row's length where that is a number of the
        code. (It may be another number that happens to be the same.)"""
        if self.symbols or family_of(node) != "pointwise" or self.length <= 2:
            return
        if self.length in numbers_of(node):
            raise Refused(
                "mixes-documents",
                f"{op_name(node)} computes with {self.length}, which is how long the row is, and may not be how long a "
                "document is: torch has made it a number of the code",
                node,
            )

    def _aware(self, node: fx.Node) -> Any:
        """A call that is told the boundaries itself."""
        value = example(node)
        if isinstance(value, (tuple, list)):
            dims = [self.row_dim(item) for item in value]
            return tuple(BOUNDED if dim is None else Row(dim) for dim in dims)
        dim = self.row_dim(value)
        return BOUNDED if dim is None else Row(dim)

    def _mixing(self, node: fx.Node, mixes: bool) -> Any:
        for target in written_inputs(node):
            self._written(target, node)
        if mixes:
            self.mixing.append(node)
        return self._mixed(node)

    def _written(self, target: fx.Node, node: fx.Node) -> None:
        """Tokens are written to memory: it is part of what mixes them, from where it is made."""
        kind = self.kinds[target]
        memory = storage(target)
        if kind is MIXED or memory is None:
            return
        if target in self.inside or memory in self.memory:
            return
        if any(n.op != "placeholder" and blank(n) and storage(n) == memory for n in self.kinds):
            self.memory.add(memory)
            raise Restart
        raise Refused("in-place", f"{op_name(node)} writes into a row that is read elsewhere; write to a copy", node)

    def _mixed(self, node: fx.Node) -> Any:
        """Mixed, or a row again."""
        dim = self.row_dim(example(node))
        if dim is None or node in self.inside or storage(node) in self.memory:
            return MIXED
        self.exits.append(node)
        return Row(dim)

    def _inner(self, node: fx.Node) -> Any:
        """The kinds of the results of a higher-order operator whose graph keeps tokens apart."""
        if not op_name(node).startswith("higher_order::"):
            return None
        for sub, inputs, outputs in subgraphs(self.gm, node):
            handed = {inner: self.kinds[outer] for outer, inner in inputs}
            if any(isinstance(kind, tuple) for kind in handed.values()):
                return None
            inner = Reading(sub, self.layouts, self.packing, self.length, handed=handed).run()
            if inner.mixing or inner.aligned:
                return None
            value = example(node)
            kinds = {i: inner.kinds[n] for i, n in outputs}
            if isinstance(value, (tuple, list)):
                return tuple(kinds.get(i, PLAIN) for i in range(len(value)))
            return kinds.get(0)
        return None

    # === Token by token =========================================================================================

    def with_rows(self, rows: Mapping[fx.Node, Row | Merged]) -> Reading:
        """The same, in which these nodes are rows."""
        other = copy.copy(self)
        other.kinds = {**self.kinds, **rows}
        other.aligned = []
        return other

    def token_by_token(self, node: fx.Node) -> Any:
        """The kind of the result if every slot depends on the slots of its own token alone."""
        call = call_of(node)
        meaning = meaning_of(call)
        if call is None or meaning is None or self.length_as_number(node):
            return None
        for target in written_inputs(node):
            if not isinstance(self.kinds[target], (Row, Merged)):
                self._written(target, node)
        found: list[Any] = []
        tables: list[Aligned] = []
        for relation, value in zip(meaning.relations, call.results, strict=True):
            kind = self._kept(node, relation, value, tables)
            if kind is None:
                return None
            found.append(kind)
        self.aligned += tables
        return tuple(found) if call.several else found[0]

    def length_as_number(self, node: fx.Node) -> bool:
        """Does a call compute with how long the row is? A document is not as long."""
        if family_of(node) != "pointwise":
            return False
        sized = [example(n) for n in read_inputs(node) if self.kinds[n] is SIZED]
        return any(not (isinstance(value, torch.Tensor) and self.touches(value.shape)) for value in sized)

    def _kept(self, node: fx.Node, relation: Relation, value: Any, tables: list[Aligned]) -> Row | Merged | None:
        """How a result goes by tokens; None if it does not."""
        call = call_of(node)
        assert call is not None
        read = set(self._loops_of_rows(call, relation))
        if len(read) != 1 or None in read:
            return None
        ((loop, inner),) = (of for of in read if of is not None)
        if loop in relation.roles:
            return None
        for k, operand in enumerate(call.operands):
            if operand.argument not in call.unread and self.kinds[operand.node] is SIZED:
                axes = relation.operands[k] or ()
                for dim, axis in enumerate(axes):
                    if axis.loops == (loop,) and axis.how == KEPT and inner == 1:
                        tables.append(Aligned(node, operand.node, dim))
                    elif self.touches(operand.value.shape[dim]) and not isinstance(axis.how, Looked):
                        return None
        dims = [d for d, of in enumerate(relation.result) if loop in of]
        if len(dims) != 1 or relation.result[dims[0]][0] != loop:
            return None
        below = self._slots(relation, relation.result[dims[0]][1:])
        if below is None:
            return None
        if isinstance(value, torch.Tensor):
            others = (size for d, size in enumerate(value.shape) if d != dims[0])
            if self.symbols and any(self.touches(size) for size in others):
                return None
        if inner * below == 1:
            return Row(dims[0])
        by = next((kind.by for n in read_inputs(node) if isinstance(kind := self.kinds[n], Merged)), node)
        return None if by in self.apart else Merged(dims[0], inner * below, by)

    def _loops_of_rows(self, call: Any, relation: Relation) -> Iterator[tuple[int, int] | None]:
        """The loops along which the packed axes of rows are read, and how many slots of them a token has; None for one
        that is not read slot by slot."""
        for k, operand in enumerate(call.operands):
            kind = self.kinds[operand.node]
            if operand.argument in call.unread or not isinstance(kind, (Row, Merged)):
                continue
            axes = relation.operands[k]
            axis = axes[kind.dim] if axes is not None else None
            whole = axis is not None and (axis.how == KEPT or self._all_of(call, axis, relation))
            if axis is None or not axis.loops or not whole:
                yield None
                continue
            inner, below = kind.inner if isinstance(kind, Merged) else 1, self._slots(relation, axis.loops[1:])
            yield None if below is None or inner % below else (axis.loops[0], inner // below)

    def _slots(self, relation: Relation, loops: Sequence[int]) -> int | None:
        """How many slots some loops have together; None if that is not known, or not the same for every row."""
        sizes = [settled(relation.sizes[loop]) for loop in loops]
        known = all(isinstance(size, int) and size > 0 and not self.touches(size) for size in sizes)
        return math.prod(sizes) if known else None

    def _all_of(self, call: Any, axis: Axis, relation: Relation) -> bool:
        """Is a cut no cut, or a pad no pad, wherever the code is good for the row's length? (A row is padded to a
        multiple of a chunk at its end, and cut again.)"""
        if len(axis.loops) != 1 or not self.of_length(relation.sizes[axis.loops[0]]):
            return False
        if isinstance(axis.how, Padded):
            pad = pad_of(call.node)
            fresh = pad is not None and not self.written.written(call.node)
            if fresh and pad is not None and isinstance(pad.before, int) and pad.before == 0:
                self.no_pads[call.node] = pad.x
                return True
            return False
        if not isinstance(axis.how, Cut) or axis.how.step != 1 or not isinstance(axis.how.start, int):
            return False
        return axis.how.start == 0 and not from_the_end(call)
