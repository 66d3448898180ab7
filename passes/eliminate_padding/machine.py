"""Interprets a padded graph and writes the packed one.

Every value of the padded graph has up to two forms in the packed graph: *whole*, computed by the very same ops and so
exact everywhere, padding included; and *packed*, with the real tokens only: ``[B, S, D]`` is ``[T, D]``,
``[B, H, S, D]`` is ``[H, T, D]``. Inputs are whole; those that turn into keys of a padded attention are packed as well.
An op whose operands have packed forms has one too, if a rule proves that no slot of its result depends on another
token. An op whose operands are whole is simply repeated. What has neither is refused.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from packpass._registry import registrar
from packpass.semantics import example, op_of, storage
from packpass.semantics.effects import effects_of
from packpass.semantics.names import op_name
from passes.eliminate_padding.facts import Fact, Table
from passes.eliminate_padding.tile import Dims, Tile, at, holds, named
from passes.eliminate_padding.values import Condition, Fill, Packed, Scores, Value
from passes.eliminate_padding.writes import elsewhere, heavy, lent_by, removable, unseen, written
from passes.refused import Refused

ops: Any = torch.ops.packpass


Rule = Callable[["Machine", fx.Node], Value]
RULES: dict[str, Rule] = {}


rule = registrar(RULES)
"""Registers the rule of ops whose operands are packed; ``"*"`` is that of all others."""


class Machine:
    """One run over one graph, for one padding mask."""

    def __init__(self, source: fx.Graph, tile: Tile, facts: Mapping[fx.Node, Fact], seeds: set[fx.Node]) -> None:
        self.source, self.tile, self.facts, self.seeds = source, tile, facts, seeds
        self.graph = fx.Graph()
        self.values: dict[fx.Node, Value] = {}
        self.conditions: list[Condition] = []
        self.lost: Refused | None = None
        """The first op whose packed form was given up."""
        self.attentions: list[fx.Node] = []
        self.unpacked: list[fx.Node] = []
        self.results: list[Dims | None] = []
        """Of every result in order: its dimensions if it was unpacked, None if it is computed whole."""
        self.plan: dict[str, fx.Node] = {}
        self.grad: Any = torch.is_grad_enabled()
        """The grad mode, or a mark of a region in inference mode."""
        self._copies: set[fx.Node] = set()
        self._region = 0
        self._packs: dict[Any, fx.Node] = {}

    # === The walk ===============================================================================================

    def run(self) -> fx.Graph:
        places = [node for node in self.source.nodes if node.op == "placeholder"]
        for node in places:
            self.values[node] = Value(self.graph.node_copy(node))
        for name in ("packed_source", "packed_slots", "packed_cu_seqlens"):
            self.plan[name.removeprefix("packed_")] = self.graph.placeholder(name)
        for node in places:
            if node in self.seeds:
                value = example(node)
                dims: Dims = (("B",), ("S",), *((int(n),) if n != 1 else () for n in value.shape[2:]))
                self.values[node] = dataclasses.replace(self.values[node], packed=self.pack(node, dims))
        for node in self.source.nodes:
            if node.op == "output":
                self.graph.output(fx.map_arg(node.args[0], self.output))
            elif node.op != "placeholder":
                self.values[node] = self.interpret(node)
        return self.graph

    def interpret(self, node: fx.Node) -> Value:
        name = op_of(node)
        operands = node.all_input_nodes
        if written(node):
            self._write(node)
        if elsewhere(node):
            raise Refused("in-place", f"{name or node.target} writes into an argument such as out=", node)
        if not isinstance(example(node), Tensor):
            self._enter(node, op_name(node))
        if not operands:
            return Value(self.copied(node))
        packed: Value | None = None
        problem: Refused | None = None
        if any(self.values[n].packed is not None or self.values[n].items is not None for n in operands):
            try:
                packed = RULES.get(name, RULES["*"])(self, node)
            except Refused as refused:
                problem = refused
                self.lost = self.lost or refused
        if packed is not None and (packed.whole is not None or packed.items is not None):
            return packed
        # Two forms of a random op would be two draws.
        light = packed is None or not (heavy(node) or effects_of(node).random)
        if light and all(self.values[n].whole is not None for n in operands):
            whole = self.copied(node)
            return Value(whole, packed.packed if packed else None)
        if packed is not None:
            return packed
        if all(n in lent_by(node) or self.whole_of(n) is not None for n in operands):
            return Value(self.copied(node))
        raise problem or Refused("attention-weights", f"{name} uses attention weights, which are not computed", node)

    def _enter(self, node: fx.Node, name: str) -> None:
        """Grad mode, autocast and the like."""
        self._region += not node.all_input_nodes
        if name.endswith("_set_grad_enabled"):
            self.grad = node.args[0]
        elif "inference_mode" in name:
            self.grad, self._region = node, self._region + 1

    def copied(self, node: fx.Node) -> fx.Node:
        """The op on whole operands; on any form of those that give a dtype and a device only."""
        forms = {n: self.any_form(n) for n in lent_by(node) if self.whole_of(n) is None}
        new = self.again(node, node.args, node.kwargs, forms)
        self._copies.add(new)
        return new

    def must_stay(self, node: fx.Node) -> bool:
        """Does a node of the packed graph do more than to compute its result? Only copies of the source can."""
        return node in self._copies and not removable(node)

    def _whole(self, node: fx.Node) -> fx.Node:
        whole = self.whole_of(node)
        assert whole is not None
        return whole

    def whole_of(self, node: fx.Node) -> fx.Node | None:
        """The whole form of a value; unpacked where it is known at padding."""
        value = self.values[node]
        packed = value.packed
        if value.whole is not None or not isinstance(packed, Packed) or packed.fill is None:
            return value.whole
        if packed.fill.given is not None:
            self.demand(packed.fill.given)
        key = ("whole", node, self._region)  # without gradients if grad mode is off here
        if key not in self._packs:
            self._packs[key] = self.unpack(packed, packed.fill.value)
        return self._packs[key]

    def output(self, node: fx.Node) -> fx.Node:
        value = self.values[node]
        if value.whole is not None:
            self.results.append(None)
            return value.whole
        if not isinstance(value.packed, Packed):
            raise Refused("attention-weights", "attention scores or weights are returned", node)
        self.unpacked.append(node)
        self.results.append(value.packed.dims)
        out = self.unpack(value.packed)
        # What comes after the graph may ask for a view of it.
        return self.call("contiguous", out) if example(node).is_contiguous() else out

    def _write(self, node: fx.Node) -> None:
        """Writing into a tensor is repeated on its whole form, unless anything else depends on what it was."""
        target = node.args[0]
        memory = storage(target)
        self._packs.clear()  # copies of what is about to change
        if unseen(node):
            return
        for other, value in self.values.items():
            if memory is None or storage(other) != memory:
                continue
            if value.packed is not None or value.whole is None or other in self.facts:
                raise Refused("in-place", f"{op_name(node)} writes into a value that holds tokens or a mask", node)

    # === Forms ==================================================================================================

    def packed(self, node: Any) -> Packed | None:
        value = self.values[node].packed if isinstance(node, fx.Node) else None
        return value if isinstance(value, Packed) else None

    def scores(self, node: Any) -> Scores | None:
        value = self.values[node].packed if isinstance(node, fx.Node) else None
        return value if isinstance(value, Scores) else None

    def require(self, node: Any, user: fx.Node) -> Packed:
        """The packed form of an operand that must have one."""
        found = self.packed(node)
        if found is None:
            raise Refused("not-tokens", f"{op_of(user)} combines tokens of the batch with other values", user)
        return found

    def plain(self, node: Any, user: fx.Node) -> Any:
        """An operand that must have no tokens: a parameter, a number."""
        if not isinstance(node, fx.Node):
            return node
        value = self.values[node]
        if value.whole is None or value.packed is not None:
            raise Refused("cross-token", f"{op_of(user)} combines the tokens of a row with one another", user)
        return value.whole

    def aligned(self, node: fx.Node, dims: Dims) -> fx.Node:
        """An operand of an elementwise op whose result has ``dims``, in the shape that goes with the packed result."""
        packed = self.packed(node)
        if packed is not None:
            return packed.node
        value, whole = example(node), self.values[node].whole
        if whole is None:
            raise Refused("attention-weights", "attention scores meet a value that is no mask", node)
        if not isinstance(value, Tensor) or value.dim() == 0:
            return whole
        new = len(dims) - value.dim()
        full = [d for d in range(value.dim()) if named(dims[d + new]) and not _is_one(value.shape[d])]
        if full:
            return self.pack(node, dims).node
        gone = at(dims, "B") - new
        return self.call("squeeze", whole, gone) if gone >= 0 and dims[gone + new] == ("B",) else whole

    def call(self, method: str, *args: Any) -> fx.Node:
        return self.graph.call_method(method, args)

    def size(self, part: Any) -> Any:
        """B or S as a number or a node of the packed graph."""
        size = self.tile.size(part)
        if isinstance(size, int):
            return size
        return self.graph.call_function(torch.ops.aten.sym_size.int, (self.plan["slots"], 0 if part == "B" else 1))

    def extent(self, parts: tuple[Any, ...]) -> Any:
        """The padded size of a dimension, as `size` has it."""
        return _product([self.size(part) for part in parts], self.graph)

    def pack(self, node: fx.Node, dims: Dims) -> Packed:
        """The packed form of a whole value that is, or broadcasts to, one with ``dims``."""
        whole = self.values[node].whole
        assert whole is not None
        key = (whole, dims, self._region)
        if key not in self._packs:
            self._packs[key] = self._pack(whole, example(node), dims)
        return Packed(self._packs[key], dims)

    def _pack(self, x: fx.Node, value: Tensor, dims: Dims) -> fx.Node:
        shape = [1] * (len(dims) - value.dim()) + [n if not _is_one(n) else 1 for n in value.shape]
        labels: list[Any] = []
        sizes: list[Any] = []
        for parts, n in zip(dims, shape, strict=True):
            labels += parts or (1,)
            sizes += [1] * max(len(parts), 1) if _is_one(n) else [self.size(p) for p in parts or (n,)]
        if len(sizes) != value.dim():
            x = self.call("reshape", x, sizes)
        b, s = _place(labels, "B"), _place(labels, "S")
        rest = [i for i in range(len(labels)) if i not in (b, s)]
        x = self.permuted(x, [b, s, *rest])
        per_position = not value.requires_grad and isinstance(sizes[b], int) and sizes[b] == 1
        if per_position:
            positions = self._positions()
            rows = self.graph.call_function(torch.index_select, (self.call("squeeze", x, 0), 0, positions))
        else:
            if any(isinstance(sizes[i], int) and sizes[i] == 1 for i in (b, s)):
                x = self.call("expand", x, self.size("B"), self.size("S"), *[-1] * len(rest))
            rows = self._move(ops.pack.default, x)
        before = sum(i < s for i in rest)
        rows = self.permuted(rows, [*range(1, before + 1), 0, *range(before + 1, len(rest) + 1)])
        if len(physical(dims)) == len(rest) + 1:
            return rows
        shapes = iter(sizes)
        merged = []
        for parts in dims:
            mine = [next(shapes) for _ in parts or (1,)]
            if parts != ("B",):
                features = [n for n, p in zip(mine, parts or (1,), strict=True) if not isinstance(p, str)]
                merged.append(-1 if holds(parts, "S") else _product(features))
        return self.call("reshape", rows, merged)

    def _move(self, op: Any, x: fx.Node, fill: float = 0) -> fx.Node:
        """Pack or unpack one tensor."""
        source, slots, cu = (self.plan[name] for name in ("source", "slots", "cu_seqlens"))
        moved = self.graph.call_function(op, ([x], source, slots, cu, cu, [fill]))
        return self.graph.call_function(operator.getitem, (moved, 0))

    def _positions(self) -> fx.Node:
        """The column of every real token, ``[T]``."""
        key = ("positions", self._region)
        if key not in self._packs:
            self._packs[key] = self.graph.call_function(torch.remainder, (self.plan["source"], self.size("S")))
        return self._packs[key]

    def permuted(self, x: fx.Node, order: list[int]) -> fx.Node:
        return x if order == sorted(order) else self.call("permute", x, order)

    def unpack(self, packed: Packed, fill: float = 0) -> fx.Node:
        """The padded form, ``fill`` at padding."""
        labels = [p for parts in packed.dims for p in (parts or (1,))]
        own = [p for p in labels if p != "B"]
        x = packed.node
        if len(physical(packed.dims)) != len(own):
            x = self.call("reshape", x, [-1 if p == "S" else p for p in own])
        s = _place(own, "S")
        x = self.permuted(x, [s, *(i for i in range(len(own)) if i != s)])
        x = self._move(ops.unpack.default, x, fill)
        rest = iter(range(2, len(labels) + 1))
        x = self.permuted(x, [0 if p == "B" else 1 if p == "S" else next(rest) for p in labels])
        if len(labels) == len(packed.dims):
            return x
        return self.call("reshape", x, [self.extent(parts) for parts in packed.dims])

    def viewed(self, packed: Packed, dims: Dims) -> Packed:
        """The packed form of a view."""
        return dataclasses.replace(packed, node=self.call("reshape", packed.node, physical(dims)), dims=dims)

    def table(self, node: Any) -> Table | None:
        fact = self.facts.get(node) if isinstance(node, fx.Node) else None
        return fact if isinstance(fact, Table) else None

    def number_of(self, x: Any) -> float | None:
        """A number, also one in a tensor that is constant."""
        if isinstance(x, fx.Node):
            table = self.table(x)
            return float(table.cells) if table is not None and table.cells.dim() == 0 and not table.dims else None
        return float(x) if type(x) in (int, float) else None

    def any_form(self, node: fx.Node) -> Any:
        """A form of an operand that gives a dtype and a device only."""
        value = self.values[node]
        form = value.packed.node if value.whole is None and isinstance(value.packed, Packed) else self.whole_of(node)
        if form is None:
            raise Refused("no-rule", "a dtype is taken from attention scores that a packed form does not compute", node)
        return form

    def again(self, node: fx.Node, args: Any, kwargs: Any, forms: Mapping[fx.Node, Any]) -> fx.Node:
        """The call of a node with these arguments, in these forms."""

        def form(n: fx.Node) -> Any:
            return forms[n] if n in forms else self._whole(n)

        new = self.graph.create_node(node.op, node.target, fx.map_arg(args, form), fx.map_arg(kwargs, form))
        new.meta = node.meta.copy()
        return new

    def repeated(self, node: fx.Node, dims: Dims, changed: Mapping[fx.Node, Any], fill: Fill | None = None) -> Value:
        """The same op on packed operands."""
        new = self.graph.node_copy(node, lambda n: changed[n] if n in changed else self._whole(n))
        return Value(packed=Packed(new, dims, fill))

    def demand(self, condition: Condition) -> None:
        if condition not in self.conditions:
            self.conditions.append(condition)


def physical(dims: Dims) -> list[Any]:
    """The shape of a packed form, with -1 for T. Sizes of features are numbers."""
    found = []
    for parts in dims:
        if parts == ("B",):
            continue
        features = [p for p in parts if not isinstance(p, str)]
        found.append(-1 if holds(parts, "S") else _product(features))
    return found


def physical_dim(dims: Dims, dim: int) -> int:
    """Where dimension ``dim`` of the padded value is in the packed form."""
    return sum(parts != ("B",) for parts in dims[:dim])


def feature(n: Any, node: fx.Node) -> tuple[Any, ...]:
    """A dimension of features."""
    if not isinstance(n, int):
        raise Refused("no-rule", f"{op_of(node)} makes features of a size that is no constant", node)
    return () if n == 1 else (n,)


def _product(sizes: list[Any], graph: fx.Graph | None = None) -> Any:
    product: Any = 1
    for n in sizes:
        if graph is not None and (isinstance(n, fx.Node) or isinstance(product, fx.Node)):
            product = graph.call_function(operator.mul, (product, n))
        else:
            product = product * n
    return product


def _is_one(n: Any) -> bool:
    return isinstance(n, int) and n == 1


def _place(labels: list[Any], label: str) -> int:
    return next(i for i, p in enumerate(labels) if isinstance(p, str) and p == label)
