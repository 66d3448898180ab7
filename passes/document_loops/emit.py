"""From terms to graph nodes: the whole-row form of what an iteration computes for its document."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from packpass.ops._library import NAMESPACE
from packpass.semantics import example, is_tensor
from packpass.semantics.build import Builder, NotBuilt
from passes.document_loops import emit_documents
from passes.document_loops.boundaries import summed
from passes.document_loops.emit_shifts import as_roll, stored
from passes.document_loops.integers import (
    EVERY,
    FULL,
    Affine,
    Bound,
    Boundaries,
    Derived,
    Invariant,
    Reach,
    Share,
    Window,
    broadcast,
    place,
)
from passes.document_loops.terms import (
    ANY,
    LENGTH,
    Apply,
    Assign,
    DocRow,
    Flip,
    Guard,
    Outside,
    Positions,
    Roll,
    Row,
    Term,
    map_args,
    thawed,
)
from passes.nodes import snapshot_of
from passes.refused import Refused

_ops = torch.ops.packpass


_LARGEST = 1 << 31
"""Products with larger numbers may not fit into 64 bits."""


class Emitter:
    """Adds nodes to a graph at its current insertion point, each with the fake value it will have."""

    def __init__(
        self,
        graph: fx.Graph,
        boundaries: Boundaries,
        total: Any,
        like: fx.Node,
        rule: str,
        before: fx.Node,
        keep: bool,
        fit: Any = None,
    ) -> None:
        self.graph, self.total, self.rule, self.before, self.keep = graph, total, rule, before, keep
        self._builder = Builder(graph, like=like, rule=rule)
        self.device = example(like).device
        self._nodes: dict[int, tuple[Any, fx.Node]] = {}
        self._masks: dict[Window, fx.Node] = {}
        self._reaches: dict[Reach, fx.Node] = {}
        self._counts: dict[Any, fx.Node] = {}
        self.places: dict[Any, fx.Node] = {}
        """Where the slots of the row lie in an outer tensor (`passes.document_loops.elsewhere`)."""
        self.boundaries = boundaries
        self.begins: fx.Node | None = None
        """Where the documents begin in the tensors that they are cut from (`passes.document_loops.fitting`)."""
        try:
            self.cu = self.given = self._boundary_node(boundaries, fit)
        except Refused:
            self.abandon()
            raise
        self._first: fx.Node | None = None
        """Where the documents begin, if slots are counted from there."""

    # --- nodes ----------------------------------------------------------------------------------------------

    def call(self, target: Any, *args: Any, method: bool = False, **kwargs: Any) -> fx.Node:
        """One node with its fake value; a failing fake run refuses the rewrite."""
        if getattr(target, "namespace", "") == NAMESPACE:
            args = self._beside_the_first(args)
        try:
            return self._builder.call(target, *args, method=method, **kwargs)
        except NotBuilt as error:
            raise Refused("emit", f"the whole-row form of {error}", error.node) from error

    def inner(self, graph: fx.GraphModule) -> fx.Node:
        """A graph for a higher-order operator."""
        return self._builder.inner(graph)

    def _beside_the_first(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments of an op of packpass, on the device of the first, which is the row: boundaries may come from the
        host, or a row may be made there."""
        first = next((a for a in args if is_tensor(a)), None)
        return args if first is None else tuple(self.on(a, example(first).device) if is_tensor(a) else a for a in args)

    def on(self, node: fx.Node, device: torch.device) -> fx.Node:
        """A tensor on a device, moved there at most once."""
        if example(node).device == device:
            return node
        return self.once((node, device), lambda: self.call("to", node, device, method=True))

    def beside(self, node: fx.Node, other: fx.Node) -> fx.Node:
        """``node`` on the device of ``other``, in memory that nobody else has if it is moved."""
        device = getattr(example(other), "device", None)
        stays = device is None or example(node).device == device
        return node if stays else self.call("to", node, device, method=True)

    def once(self, key: Any, make: Callable[[], fx.Node]) -> fx.Node:
        """What ``make`` makes, made once for a key."""
        if key not in self._counts:
            self._counts[key] = make()
        return self._counts[key]

    @property
    def made(self) -> list[fx.Node]:
        """What was emitted."""
        return self._builder.made

    def abandon(self) -> None:
        """Erase everything emitted so far."""
        self._builder.undo()

    # --- boundaries -----------------------------------------------------------------------------------------

    def _boundary_node(self, boundaries: Boundaries, fit: Any) -> fx.Node:
        node = boundaries.node
        if boundaries.made is not None:
            made_up = self.each(boundaries.made)
            node = self.call(torch.clamp, made_up, min=0) if fit is None else made_up
        if boundaries.lengths:
            node = summed(self.call, node) if fit is None else node
        elif self.keep:
            node = snapshot_of(node, self.before, self.call)
        return self.on(node, self.device) if fit is None else fit.documents(self, self.on(node, self.device))

    def forget(self) -> None:
        """What was worked out from other boundaries than those that come now."""
        self._counts.clear()
        self._reaches.clear()

    def only_documents(self) -> Any:
        """No row to cut: slots are counted from the first boundary, and there are as many as documents have."""
        first = self.call(operator.getitem, self.cu, slice(0, 1))
        self.cu, self._first = self.call(torch.sub, self.cu, first), first
        if self.total is None:
            self.total = self.call(_ops.covered_length.default, self.cu)
        return self.total

    def mask(self, window: Window) -> fx.Node:
        """bool [total]: True on the slots of a plain window, or one between two numbers, of every document."""
        if window not in self._masks and window.between is not None:
            self._masks[window] = emit_documents.mask_between(self, *window.between)
        elif window not in self._masks:
            self._masks[window] = self.call(_ops.window_mask.default, self.cu, self.total, window.front, window.back)
        return self._masks[window]

    def along(self, vector: fx.Node, dim: int) -> fx.Node:
        """A vector with dimensions of size 1 behind it, so that it lies along ``dim`` (negative)."""
        for _ in range(-dim - 1):
            vector = self.call(torch.unsqueeze, vector, -1)
        return vector

    def _mask_for(self, window: Window, dim: int) -> fx.Node:
        return self.along(self.mask(window), dim)

    def choose(self, window: Window, inside: Any, outside: Any, dim: int) -> fx.Node:
        """``inside`` on the slots of ``window``, ``outside`` on the document's other slots (the tail is free)."""
        if not window.plain and window.between is None:
            window = Window(back=window.last) if window.last is not None else Window(front=window.first or 0)
            inside, outside = outside, inside
        mask = self._mask_for(window, dim)
        like = next((n for n in (inside, outside) if is_tensor(n)), mask)
        return self.call(torch.where, self.on(mask, example(like).device), inside, outside)

    # --- terms ----------------------------------------------------------------------------------------------

    def node(self, value: Term | Outside) -> fx.Node:
        """The node of a term or outside tensor, made once."""
        key = id(value)
        if key not in self._nodes:
            # With the value itself: another that is made later must not get the place in memory that is its name here.
            self._nodes[key] = value, self._make(value)
        return self._nodes[key][1]

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, (Term, Outside)):
            return self.node(value)
        return self.total if value is LENGTH else value

    def selected(self, part: Any) -> fx.Node:
        """An outer tensor, ``part.node``, as ``part.index`` selects along its other dimensions."""
        node: fx.Node = part.node
        return self.call(operator.getitem, node, self.arguments(part.index)) if part.index else node

    def arguments(self, value: Any) -> Any:
        """An interned argument structure as the new nodes take it."""
        return thawed(map_args(value, self._leaf))

    def _make(self, value: Any) -> fx.Node:
        if isinstance(value, Row):
            return self.selected(value)
        if isinstance(value, Outside):
            if value.node is not None:
                return value.node
            target, method, args, kwargs = value.call  # type: ignore[misc]
            return self.call(target, *self.arguments(args), method=method, **{k: self.arguments(v) for k, v in kwargs})
        if isinstance(value, Apply):
            kwargs = {k: self.arguments(v) for k, v in value.kwargs}
            return self.call(value.target, *self.arguments(value.args), method=value.method, **kwargs)
        if isinstance(value, Roll):
            fill = 0 if value.fill is ANY else value.fill
            return self.call(_ops.packed_roll.default, self.node(value.of), self.cu, value.shift, value.dim, fill, None)
        if isinstance(value, Flip):
            return self.call(_ops.packed_flip.default, self.node(value.of), self.cu, value.dim)
        if isinstance(value, Guard):
            inner = self.node(value.of)
            other: Any = bool(value.fill) if example(inner).dtype == torch.bool else value.fill
            kept = self.where_reached(value.reach, inner, other, value.dim) if value.reach else inner
            return self.choose(value.window, kept, other, value.dim)
        if isinstance(value, Positions):
            return self._positions(value)
        if isinstance(value, Assign):
            return self._assign(value)
        made: fx.Node = value.emit(self) if hasattr(value, "emit") else emit_documents.make(self, value)
        return made

    def _positions(self, value: Positions) -> fx.Node:
        if value.per_document:
            node = self.call(_ops.position_ids.default, self.on(self.cu, value.device), self.total)
        else:
            node = self.call(torch.arange, self.total, device=value.device)
            if self._first is not None and not value.gathered:
                node = self.call(torch.add, node, self.on(self._first, value.device))
        if value.start:
            node = self.call(torch.add, node, value.start)
        if value.dtype != torch.int64:
            node = self.call("to", node, value.dtype, method=True)
        return node

    def _assign(self, value: Assign) -> fx.Node:
        shifted = as_roll(self, value)
        if shifted is not None:
            return shifted
        base = self.node(value.base)
        new = self.fitted(value.value, base)
        if value.window == FULL and not self._lends_its_gradient(base, new):
            return new if isinstance(new, fx.Node) else self.call(torch.full_like, base, new)
        return self.choose(value.window, new, base, value.dim)

    def _lends_its_gradient(self, base: fx.Node, new: Any) -> bool:
        """Is a tensor with a gradient overwritten by one without? Its gradient is 0 then, and still asked for."""
        return bool(example(base).requires_grad) and not (isinstance(new, fx.Node) and example(new).requires_grad)

    def fitted(self, value: Any, base: fx.Node) -> Any:
        """``value`` as an assignment to ``base`` would store it: in its dtype and shape (a scalar stays a scalar)."""
        like = example(base)
        if not isinstance(value, (Term, Outside)):
            return stored(value, like.dtype)
        node = self.node(value)
        if example(node).dtype != like.dtype:
            node = self.call("to", node, like.dtype, method=True)
        node = self.on(node, like.device)
        if tuple(example(node).shape) != tuple(like.shape):
            node = self.call("expand_as", node, base, method=True)
        return node

    def each(self, value: Affine) -> Any:
        """An integer of every document, which there are no boundaries for yet: [N]."""
        documents = self.before.args[0]

        def entries(atom: Any) -> fx.Node:
            if isinstance(atom, Bound):
                return self.call("long", self.call(torch.narrow, atom.of.node, 0, atom.k, documents), method=True)
            return self.call(torch.arange, documents, device=self.device)

        made = self._total(value, entries)
        return made if is_tensor(made) else self.call(torch.full, (documents,), made, device=self.device)

    def _total(self, value: Affine, entries: Callable[[Any], Any]) -> Any:
        """The sum that a number is; ``entries`` makes those of a vector. Numbers of Python have more than 32 bits."""
        total: Any = value.const
        large = value.is_large
        if any(abs(c) >= _LARGEST for _, c in value.atoms) or abs(total) >= 1 << 62:
            raise Refused("index-as-number", "a number of a document is more than 64 bits hold", self.before)
        for atom, c in sorted(value.atoms, key=repr):
            part: Any
            if isinstance(atom, Derived):
                part = self._derived(atom.function, [self._total(arg, entries) for arg in atom.args])
            else:
                part = atom.node if isinstance(atom, Invariant) else entries(atom)
            if large and is_tensor(part) and example(part).dtype is torch.int32:
                part = self.call("long", part, method=True)
            part = self.call(operator.mul, part, c) if c != 1 else part
            total = self.call(operator.add, part, total) if isinstance(total, fx.Node) or total else part
        return total

    def _derived(self, function: Any, args: list[Any]) -> fx.Node:
        """A quotient or remainder, a share, the smaller or larger of two numbers, or a place of every document."""
        if function in (place, broadcast):
            return emit_documents.OF_NUMBERS[function](self, *args)
        if isinstance(function, Share):
            return emit_documents.share_of(self, function, *args)
        if function not in (min, max):
            return self.call(function, *args)
        args.sort(key=lambda arg: not (isinstance(arg, fx.Node) and isinstance(example(arg), torch.Tensor)))
        if all(isinstance(arg, fx.Node) and isinstance(example(arg), torch.Tensor) for arg in args):
            return self.call(torch.minimum if function is min else torch.maximum, *args)
        return self.call(torch.clamp, args[0], **{"max" if function is min else "min": args[1]})

    # --- integers as vectors, for checks --------------------------------------------------------------------

    def vector(self, value: Affine, boundaries: Boundaries) -> Any:
        """One entry per document, and one more that means nothing: vectors of N entries, such as ``cu[:-1]``, make
        torch ask whether N is 1, which would cost a graph of its own."""

        def entries(atom: Any) -> fx.Node:
            return self._bound(atom, boundaries) if isinstance(atom, Bound) else self.entries()

        return self._total(value, entries)

    def _bound(self, atom: Bound, boundaries: Boundaries) -> fx.Node:
        """``boundaries[i + k]``, or the same of another vector of integers."""
        if atom.of == boundaries and atom.k in (0, 1):
            return self.given if atom.k == 0 else self.following()
        if boundaries == Boundaries(atom.of.node, lengths=True) and atom.k == 0:
            return self.lengths()
        if atom.of == boundaries or atom.k < 0:
            raise Refused("index-as-number", "the boundaries of another document are used as a value", atom.of.node)
        if atom.of.lengths:
            return self.on(emit_documents.summed_up(self, atom), self.device)
        return self.on(self.node(DocRow(atom.of.node, (), -1, atom.k)), self.device)

    def following(self) -> fx.Node:
        """Where every document ends: [N + 1], the last entry a document without slots."""

        def made() -> fx.Node:
            last = self.call(operator.sub, self.call(torch.ops.aten.sym_size.int, self.given, 0), 1)
            after = self.call(torch.clamp, self.call(torch.add, self.entries(), 1), max=last)
            return self.call(torch.index_select, self.given, 0, after)

        return self.once("following", made)

    def lengths(self) -> fx.Node:
        """Slots of every document: [N + 1]."""
        return self.once("lengths", lambda: self.call(torch.sub, self.following(), self.given))

    def documents(self) -> fx.Node:
        """N, an integer."""
        return self.once("documents", lambda: self.call(operator.sub, self._bounds(), 1))

    def entries(self) -> fx.Node:
        """0 .. N, one per entry of the boundaries."""
        return self.once("entries", lambda: self.call(torch.arange, self._bounds(), device=self.device))

    def _bounds(self) -> fx.Node:
        return self.call(torch.ops.aten.sym_size.int, self.cu, 0)

    def reaches(self, reach: Reach) -> fx.Node:
        """bool [N + 1]: documents of ``reach``; not the last entry, which is no document."""
        if reach not in self._reaches:
            real = self.call(operator.lt, self.entries(), self.documents())
            if reach.slots:
                real = self.call(torch.logical_and, real, self.call(operator.ge, self.lengths(), reach.slots))
            for condition in reach.conditions:
                real = self.call(torch.logical_and, real, emit_documents.condition(self, condition))
            self._reaches[reach] = real
        return self._reaches[reach]

    def where_reached(self, reach: Reach, inside: Any, outside: Any, dim: int) -> fx.Node:
        """``inside`` on slots of documents of ``reach``, ``outside`` on those of others (the tail is free)."""
        keep = emit_documents.reached_slots(self, reach)
        like = inside if is_tensor(inside) else outside
        return self.call(torch.where, self.on(self.along(keep, dim), example(like).device), inside, outside)

    def for_every_document(self, holds: fx.Node, reach: Reach = EVERY) -> fx.Node:
        """0-d bool: does a condition over `entries` hold for every document of ``reach``?"""
        reached = self.on(self.reaches(reach), example(holds).device)
        return self.call(torch.all, self.call(torch.logical_or, holds, self.call(torch.logical_not, reached)))
