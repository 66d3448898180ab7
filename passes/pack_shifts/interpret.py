"""Walk a graph once and follow where the slots of packed rows go; every shift that somebody looks at is an event.

The interpreter knows a handful of calls that move, cut, join or overwrite slots (`structural`). Every other call *uses*
its inputs: at that moment the content of an input is looked at, and if it is a shifted row, that is a `Found`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass.layout import Axis, Layouts, Packing
from packpass.semantics import argument, contents_of, example, op_name, read_inputs, storage
from packpass.semantics.effects import written_inputs
from packpass.semantics.losses import OF_CLASSES
from passes.pack_shifts.pieces import ZERO, Pieces, Read, Shift, Source, crop, moved_part, shift_of, whole
from passes.pack_shifts.registry import rule_of
from passes.pack_shifts.values import Left, Store, Uniform, View, is_plain, new_store, position, recast

_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclasses.dataclass(eq=False)
class Found:
    """A naive shift along a packed row, first looked at through ``view``."""

    shift: Shift
    packing: Packing
    view: View
    user: fx.Node
    """The first call that looks at it."""
    origin: fx.Node
    dim: int
    """Packed dimension of the source."""
    uses: list[tuple[fx.Node, View]]
    """Calls that look at it, each with the view it looks at."""
    version: int = 0
    """Of the memory that is the shift: what was read of it before is something else."""
    needs: list[Found] = dataclasses.field(default_factory=list)
    """Shifts without which this one must not be rewritten: one of tokens, the other of their mask."""
    copies: list[Found] = dataclasses.field(default_factory=list)
    """The same shift in other memory."""

    def __post_init__(self) -> None:
        self.version = self.view.store.version

    @property
    def store(self) -> Store:
        return self.view.store

    @property
    def is_cut(self) -> bool:
        """Is only a cut of the memory the shift, not the tensor itself?"""
        return self.store.found is not self


class Interpreter:
    """State of one walk. ``layouts`` tells which rows are packed."""

    def __init__(self, graph: fx.Graph, layouts: Layouts) -> None:
        self.graph, self.layouts = graph, layouts
        self.values: dict[fx.Node, View | Uniform] = {}
        self.found: list[Found] = []
        self.wrapping: list[tuple[Store, fx.Node, Shift]] = []
        """Rolls whose open end nobody fills before somebody looks at it."""
        self.unfilled: list[tuple[Store, Left]] = []
        """Shifts with something else than one number in the slots that they open, or that are seen in another way."""
        self.roots: dict[int, list[Store]] = {}
        """Stores by the identity of their memory."""
        self.cuts: dict[Any, Found] = {}
        self.unknown: list[fx.Node] = []
        """Calls without a rule that fits."""
        self.between: dict[fx.Node, list[tuple[Store, Shift]]] = {}
        """Calls that move slots on of what was shifted before, and what that was."""

    def run(self) -> list[Found]:
        for node in self.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self.seed(node)
                continue
            rule = None if isinstance(example(node), _NUMBERS) else rule_of(node)
            if rule is not None:
                value = rule(self, node)
                if value is not None:
                    if isinstance(value, (View, Uniform)):
                        self.values[node] = value
                    continue
            self.unknown.append(node)
            self.use_inputs(node)
            self.seed(node)
        return self.found

    # === Values ===============================================================================================

    def seed(self, node: fx.Node) -> None:
        """A tensor that some other call made: a row of its own, if the layout says that it is packed."""
        if not isinstance(example(node), torch.Tensor):
            return
        packed = self.layouts.packed_dim(node)
        if packed is None:
            return
        memory = storage(node)
        if any(not store.escaped for store in self.roots.get(memory, ())):
            for store in self.roots[memory]:
                store.escaped = True  # a view by a call that is not understood, or an input that shares memory
        dim, _ = packed
        size = example(node).shape[dim]
        view = new_store(node, dim, size, [()], None)
        view.store.alternatives = [view.store.identity()]
        self.keep(view.store)
        self.values[node] = view

    def keep(self, store: Store) -> None:
        self.roots.setdefault(storage(store.root), []).append(store)

    def view(self, arg: Any) -> View | None:
        value = self.values.get(arg) if isinstance(arg, fx.Node) else None
        return value if isinstance(value, View) else None

    def read(self, view: View, node: fx.Node) -> list[Pieces]:
        """The slots of a view, as a call that moves them reads them.

        What was moved before and is complete is also offered as a row of its own: shifting a shifted row.
        """
        store = view.store
        before = None if is_plain(store) else self.shift(store)
        contents = (p.content for p in store.alternatives[0])
        turned = next((c.source for c in contents if isinstance(c, Read) and c.turned), None)
        way = before or (None if turned is None else Shift(turned, 0))
        if way is not None:
            self.between.setdefault(node, []).append((store, way))
        if not view.straight:
            # Its slots under another shape: only as a row of its own.
            if not is_plain(store):
                self.settle(view, node)
            base = self.full(view.base, store)
            return [crop(base, view.start, view.stop)]
        out = [crop(p, view.start, view.stop) for p in store.alternatives[:1]]
        if is_plain(store):
            return out
        if before is not None:
            out.append(crop(store.identity(), view.start, view.stop))
        elif view.chain and self.cut_shift(view) is not None:
            out.append(whole(view.stop - view.start, Read(Source(view.chain[-1], store.version), ZERO)))
        return out

    def settle(self, view: View, node: fx.Node) -> None:
        """A shifted row is moved on under another shape: it has to be boundary-aware by then."""
        shift = self.shift(view.store)
        if view.store.found is None and shift is not None and not (shift.wraps or shift.dropped or view.store.escaped):
            view.store.found = self.add(shift, view, node, view.store.origin, used=False)

    def full(self, base: fx.Node, store: Store) -> Pieces:
        """All slots of ``base``, a view of ``store`` under another shape, as themselves."""
        length = position(example(store.root).shape[store.dim], store.size)
        assert length is not None
        return whole(length, Read(Source(base, store.version), ZERO))

    def shift(self, store: Store) -> Shift | None:
        """The shift that the content of a store is now, if it is one."""
        row = position(store.size, store.size)
        assert row is not None
        for pieces in store.alternatives:
            found = shift_of(pieces, row)
            if found is not None and (found.fill is None or _is_number(found.fill)):
                return found
        return None

    # === Uses =================================================================================================

    def use_inputs(self, node: fx.Node) -> None:
        written, read = written_inputs(node), set(read_inputs(node))
        filled = []
        for arg in node.all_input_nodes:
            if isinstance(self.values.get(arg), Uniform) and (arg in written or storage(node) == storage(arg)):
                del self.values[arg]  # it may be written through what this call returns
                filled += [arg] if arg in written and storage(node) != storage(arg) else []
            view = self.view(arg)
            if view is not None:
                if arg in read or arg in written:
                    self.look(view, node)
                if storage(node) == storage(arg):
                    view.store.escaped = True
        for arg in written:
            if arg in filled and contents_of(arg) is not None:
                self.seed(arg)  # tokens are put into a new row by an index: from here on it is a row of its own
            view = self.view(arg)
            if view is not None:
                view.store.replace([()], node)
                view.store.alternatives = [view.store.identity()]

    def look(self, view: View, node: fx.Node) -> None:
        """Somebody looks at the content of a view: is it a shift by now?"""
        store = view.store
        if store.found is not None:
            store.found.uses.append((node, view))
            return
        if store.escaped:
            return
        shift = None if is_plain(store) else self.shift(store)
        if shift is not None and not shift.dropped:
            if shift.wraps:
                self.wrapping.append((store, node, shift))
            else:
                store.found = self.add(shift, view, node, store.origin)
            return
        if shift is None and not is_plain(store) and self.cut_shift(view) is None:
            unfilled = self.unfilled_by(view)
            self.unfilled += [] if unfilled is None else [(store, unfilled)]
        self.look_at_cut(view, node)

    def unfilled_by(self, view: View) -> Left | None:
        """Why nothing is filled in where a view shows a packed row that was shifted: what is at its open end is not one
        number, or it came there in another way than by a shift alone."""
        store, row = view.store, position(view.store.size, view.store.size)
        if row is None or view.dim is None:
            return None
        for pieces in (crop(p, view.start, view.stop) for p in store.alternatives):
            source = moved_part(pieces, row)
            if source is not None and self.layouts.packed_dim(source.node) is not None:
                return _why_unfilled(pieces, view)
        return None

    def cut_shift(self, view: View) -> Shift | None:
        """The shift that the slots of a view are, whatever else the memory holds."""
        store = view.store
        row = position(store.size, store.size)
        if view.dim is None or row is None:
            return None
        if view.based:  # what happens to the shape after the cut is done again
            contents = [crop(p, view.start, view.stop) for p in store.alternatives]
        else:
            contents = [crop(self.full(view.base, store), view.start, view.stop)] if is_plain(store) else []
        shifts = (shift_of(p, row) for p in contents)
        return next((s for s in shifts if s is not None and not s.wraps and (s.dropped or _is_number(s.fill))), None)

    def look_at_cut(self, view: View, node: fx.Node, used: bool = True) -> None:
        """A shift that a cut makes: ``pad(x, (0, 1))[1:]``, or ``labels[:, 1:]`` as the targets of a loss."""
        store = view.store
        shift = self.cut_shift(view)
        if shift is None or not view.chain or (shift.dropped and not self.is_target(node, view)):
            return
        key = (store, store.version, view.start, view.stop, ignored(node) if shift.dropped else None)
        if key not in self.cuts:
            found = self.add(shift, view, node, store.origin or view.chain[0], used=False)
            if found is None:
                return
            self.cuts[key] = found
        if used:
            self.cuts[key].uses.append((node, view))

    def add(self, shift: Shift, view: View, node: fx.Node, origin: fx.Node | None, used: bool = True) -> Found | None:
        source = shift.source.node
        packed = self.layouts.packed_dim(source)
        if packed is None or origin is None:
            return None
        if shift.dropped:
            shift = dataclasses.replace(shift, fill=ignored(node))
        parent = self.parent(shift)
        if parent is not None and parent.chain:
            self.look_at_cut(parent, node, used=False)
        elif parent is not None and parent.store.found is None:
            inner = self.shift(parent.store)
            if inner is None or inner.wraps or inner.dropped:
                return None
            parent.store.found = self.add(inner, parent, node, parent.store.origin, used=False)
        found = Found(shift, packed[1], view, node, origin, packed[0], [(node, view)] if used else [])
        self.found.append(found)
        return found

    def parent(self, shift: Shift) -> View | None:
        """The source, if it is itself a shifted row that is read as it is: it has to be boundary-aware first."""
        view = self.view(shift.source.node)
        if view is None or is_plain(view.store) or view.store.version != shift.source.version:
            return None
        return view

    def is_target(self, node: fx.Node, view: View) -> bool:
        """Does a loss with an ``ignore_index`` use this as its targets?"""
        target = argument(node, 1, "target") if op_name(node) in OF_CLASSES else None
        return isinstance(target, fx.Node) and self.values.get(target) is view

    # === New rows =============================================================================================

    def copied(self, node: fx.Node, view: View) -> View | None:
        """A copy of a view in the same shape, perhaps in another dtype (or the same memory again)."""
        if view.dim is None:
            return None
        source = view.node
        if storage(node) == storage(source):
            return dataclasses.replace(view, chain=(*view.chain, node), base=view.base if view.chain else node)
        before, after = example(source).dtype, example(node).dtype
        cast = [recast(p, before, after) for p in self.read(view, node)]
        if cast[0] is None and not is_plain(view.store):
            return None  # a shifted row in another dtype than its source: a use of the shift, and a row of its own
        return self.made(node, view.dim, view.store.size, [p for p in cast if p is not None], view.store.origin)

    def made(
        self, node: fx.Node, dim: int, size: Any, alternatives: list[Pieces], origin: fx.Node | None
    ) -> View | None:
        """A new tensor with this content; None if nothing is known about it."""
        length = position(example(node).shape[dim], size)
        kept = [p for p in alternatives if p and p[-1].stop == length]
        if not kept or length is None:
            return None
        view = new_store(node, dim, size, kept, origin)
        self.keep(view.store)
        if length == position(size, size):
            for pieces in kept:
                for piece in pieces:
                    self.same_row(piece.content, node, dim)
        return view

    def same_row(self, content: Any, node: fx.Node, dim: int) -> None:
        """A row made of slots of a packed row is cut by the same boundaries."""
        if isinstance(content, Read) and not content.turned:
            packed = self.layouts.packed_dim(content.source.node)
            if packed is not None:
                self.layouts.axes.link(Axis(content.source.node, packed[0]), Axis(node, dim))


def ignored(loss: fx.Node) -> Any:
    """The target that a loss does not count."""
    value = argument(loss, 4, "ignore_index", -100)
    return value if isinstance(value, int) else -100


def _why_unfilled(pieces: Pieces, view: View) -> Left:
    if any(isinstance(p.content, Read) and p.content.turned for p in pieces):
        return Left(
            "moved-slots",
            "a packed row is turned round, shifted, and looked at before it is turned back; shift it as it stands, or "
            "use packpass.ops.packed_roll",
        )
    if not view.based:
        return Left(
            "moved-slots",
            "a packed row is padded, seen in another shape, and cut; cut it first, or use packpass.ops.packed_roll",
        )
    reason = "what comes in at the row's open end is not one number, so there is nothing to fill documents with"
    return Left("no-fill", reason)


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))
