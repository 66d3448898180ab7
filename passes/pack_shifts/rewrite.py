"""Put `packed_roll` in the place of a naive shift."""

from __future__ import annotations

import operator
from typing import Any, Protocol

import torch
from torch import fx

from packpass.layout.sources import Packing, root_of
from packpass.semantics import example, op_name
from packpass.semantics.effects import effects_of, mutated_after
from packpass.semantics.unbatched import inside_transforms
from passes.nodes import call
from passes.pack_shifts.interpret import Found, storage
from passes.pack_shifts.shards import roll_shards, shards_of
from passes.pack_shifts.values import Left

_ops = torch.ops.packpass


class Shifted(Protocol):
    """A shift or a loss that was found."""

    @property
    def packing(self) -> Packing: ...
    @property
    def user(self) -> fx.Node: ...
    @property
    def origin(self) -> fx.Node: ...


class Rewriter:
    """Rewrites the shifts of one graph, in the order in which they were found."""

    def __init__(self, graph: fx.Graph, rule: str) -> None:
        self.graph, self.rule = graph, rule
        self.replaced: dict[fx.Node, tuple[int, fx.Node]] = {}
        """Old shifted tensor -> the version of its memory that was replaced, and the new one."""
        self._boundaries: dict[tuple[Any, ...], tuple[fx.Node, fx.Node | None]] = {}
        self.old: list[fx.Node] = []
        """Calls that may be of no use any more."""
        self.erased: set[fx.Node] = set()
        self.memories: list[set[fx.Node]] = []
        """Naive shifts: the tensor, its views and the calls that write it. Of use as long as anybody else looks."""

    def rewrite(self, found: Found, at: fx.Node, boundaries: fx.Node, padded: fx.Node | None) -> fx.Node:
        """The new row, before ``at``; every later use of the old one now uses it."""
        shift, store = found.shift, found.store
        version, source = self.replaced.get(shift.source.node, (0, shift.source.node))
        if shift.source.version < version:
            source = shift.source.node  # what it was before it was shifted
        like = example(found.view.chain[0] if found.is_cut else store.root)
        with self.graph.inserting_before(at):
            row = source
            if example(row).dtype != like.dtype:
                row = self.call("to", row, like.dtype, method=True)
            if example(row).requires_grad and not like.requires_grad:
                row = self.call("detach", row, method=True)  # of a detached row, or one shifted under no_grad
            total = self.total(row, found.dim)
            back = found.dim - example(row).dim()
            fill = None if shift.wraps else torch.empty((), dtype=like.dtype).fill_(shift.fill).item()
            shards = shards_of(found.packing)
            if shards is not None:
                cu = self.copied(boundaries, example(row), at)
                new = roll_shards(self.call, shards, row, cu, shift.by, back, fill)
            else:
                cu, padded = self.checked(boundaries, padded, total, example(row), found.packing.kind, at)
                new = self.call(_ops.packed_roll.default, row, cu, shift.by, back, fill, padded)
            for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
                if key in found.origin.meta:
                    new.meta[key] = found.origin.meta[key]
            made = new
            if shift.dropped:
                kept = self.call(torch.ops.aten.sym_size.int, row, found.dim) if not isinstance(total, int) else total
                kept = kept - shift.dropped if isinstance(kept, int) else self.call(operator.sub, kept, shift.dropped)
                made = self.call(torch.narrow, made, found.dim, 0, kept)
            if tuple(example(made).shape) != tuple(like.shape):
                shape = [n if isinstance(n, int) else -1 for n in like.shape]
                made = self.call("view", made, *shape, method=True)  # dimensions of one slot come or go
        if found.is_cut:
            self.put_cut(found, made)
        else:
            self.put(found, made)
        return new

    def call(self, target: Any, *args: Any, method: bool = False, **kwargs: Any) -> fx.Node:
        return call(self.graph, self.rule, target, *args, method=method, **kwargs)

    def total(self, row: fx.Node, dim: int) -> Any:
        size = example(row).shape[dim]
        return size if isinstance(size, int) else self.call(torch.ops.aten.sym_size.int, row, dim)

    def checked(
        self, cu: fx.Node, padded: fx.Node | None, total: Any, source: torch.Tensor, kind: str, at: fx.Node
    ) -> tuple[fx.Node, fx.Node | None]:
        """The boundaries as the new call may use them: declared ones are checked, recognised ones are used only if
        they fit the row (see the op `boundaries_or_row`). One copy serves all shifts."""
        key = (cu, padded, str(example(total)), kind, source.requires_grad)
        if key in self._boundaries:
            known = self._boundaries[key]
            if known[0] < at and not mutated_after(self.graph, cu, cu.next, at):
                return known
        first = self.ready(cu, source)
        second = self.ready(padded, source) if padded is not None else None
        if kind == "declared":
            self.call(_ops.check_cu_seqlens.default, first, total, second)
        elif kind != "loop":
            fits = _ops.boundaries_or_row.default
            safe = self.call(fits, first, total, second, True) if second is not None else None
            first, second = self.call(fits, first, total, second, False), safe
        self._boundaries[key] = (first, second)
        return first, second

    def copied(self, cu: fx.Node, source: torch.Tensor, at: fx.Node) -> fx.Node:
        """The boundaries of a row of shards, ready for an op that checks them itself. One copy serves all shifts."""
        key = (cu, source.requires_grad)
        known = self._boundaries.get(key)
        if known is None or not known[0] < at or mutated_after(self.graph, cu, cu.next, at):
            known = self._boundaries[key] = self.ready(cu, source), None
        return known[0]

    def ready(self, cu: fx.Node, source: torch.Tensor) -> fx.Node:
        """On the row's device, and copied where a backward needs them: a training loop may refill the boundaries
        before the backward reads them."""
        if example(cu).device != source.device:
            cu = self.call("to", cu, source.device, method=True)
        return self.call(_ops.snapshot.default, cu) if source.requires_grad else cu

    def put(self, found: Found, new: fx.Node) -> None:
        """Later uses of the shifted tensor use the new one; a tensor that others can see is filled with it."""
        store = found.store
        root = store.root
        settled = found.user
        if not self.is_private(root, settled):
            with self.graph.inserting_before(settled):
                self.call("copy_", root, new, method=True)
            return
        aliases = [n for n in self.graph.nodes if n is not root and storage(n) == storage(root) and n < settled]
        writes = {w for w in store.writes if w < settled}
        wanted: set[fx.Node] = set()
        for alias in reversed(aliases):  # views made before the last write, used after it, and views of which they are
            later = any(u is settled or settled < u or u in wanted for u in alias.users)
            if later and alias not in writes:
                wanted.add(alias)
        renewed = {root: new}
        with self.graph.inserting_before(settled):
            for alias in aliases:
                if alias in wanted:
                    renewed[alias] = self.copy_view(alias, renewed)
        for old, made in renewed.items():
            for user in list(old.users):
                if user is settled or settled < user:
                    user.replace_input_with(old, made)
            self.replaced[old] = found.version, made
        self.memories.append({*writes, *aliases, root})

    def copy_view(self, alias: fx.Node, renewed: dict[fx.Node, fx.Node]) -> fx.Node:
        """The same view of the new tensor; its fake value as well, which says whose memory it is."""
        self.split_again(alias, renewed)
        args, kwargs = fx.map_arg((alias.args, alias.kwargs), lambda n: renewed.get(n, n))
        made = self.call(alias.target, *args, method=alias.op == "call_method", **kwargs)
        made.meta |= {key: value for key, value in alias.meta.items() if key not in made.meta}
        return made

    def split_again(self, part: fx.Node, renewed: dict[fx.Node, fx.Node]) -> None:
        """A part of a row that is split: the new row is split in the same way."""
        whole = part.args[0]
        if isinstance(whole, fx.Node) and isinstance(example(whole), (tuple, list)) and whole not in renewed:
            renewed[whole] = self.graph.node_copy(whole, lambda n: renewed.get(n, n))

    def put_cut(self, found: Found, new: fx.Node) -> None:
        """``labels[:, k:]`` as targets: the calls from the cut to those who look at it, on the new row."""
        renewed = {found.view.chain[0]: new}
        for user, view in [(found.user, found.view), *found.uses]:
            with self.graph.inserting_before(user):
                for node in view.chain[1:]:
                    if node not in renewed:
                        self.split_again(node, renewed)
                        renewed[node] = self.graph.node_copy(node, lambda n: renewed.get(n, n))
        for user, view in found.uses:
            user.replace_input_with(view.chain[-1], renewed[view.chain[-1]])
            self.old += list(view.chain)
        self.replaced |= {old: (found.version, made) for old, made in renewed.items()}
        self.old.append(found.store.root)

    def is_private(self, root: fx.Node, settled: fx.Node) -> bool:
        """Was this tensor made in the graph, with memory of its own?"""
        if root.op != "call_function" and root.op != "call_method":
            return False
        first = next(n for n in self.graph.nodes if storage(n) == storage(root))
        return first is root

    def clean(self) -> None:
        """Remove the naive shifts that nobody uses any more, their writes included."""
        gone = set(self.old)
        waiting, erased = list(self.memories), True
        while erased:
            erased = self.erase_unused(gone)
            for memory in waiting:
                if all(user in memory for node in memory - self.erased for user in node.users):
                    waiting.remove(memory)
                    for node in sorted(memory, reverse=True):
                        gone |= self.erase(node)
                    gone -= memory
                    erased = True
                    break

    def erase_unused(self, gone: set[fx.Node]) -> bool:
        """Erase what is in ``gone`` and unused, and what it was made of."""
        erased = False
        while unused := [node for node in gone if not node.users]:
            for node in unused:
                gone.discard(node)
                gone |= self.erase(node)
            erased = True
        return erased

    def erase(self, node: fx.Node) -> set[fx.Node]:
        """Erase a node; returns those of its inputs that may be of no use now."""
        if node in self.erased:
            return set()
        self.erased.add(node)
        inputs = [n for n in node.all_input_nodes if n.op in ("call_function", "call_method") and effects_of(n).pure]
        self.graph.erase_node(node)
        return {n for n in inputs if not n.users}


class Boundaries:
    """Where the boundaries of the whole graph are found in one of its (sub)graphs."""

    def __init__(self, gm: fx.GraphModule, node: fx.Node | None = None, outer: Boundaries | None = None) -> None:
        self.gm, self.node, self.outer = gm, node, outer
        self.made: dict[fx.Node, fx.Node] = {}

    def inside(self, node: fx.Node, gm: fx.GraphModule) -> Boundaries:
        """Those of the graph that the higher-order operator ``node`` calls."""
        return Boundaries(gm, node, self)

    def refused(self, found: Shifted, graph: fx.Graph) -> Left | None:
        """Why the boundaries cannot be used at this shift."""
        packing = found.packing
        if self.node is not None and "autograd_function" in str(self.node.target):
            return Left(
                "autograd-function",
                "the shift is inside an autograd.Function, whose backward is written for it as it is",
            )
        if found.origin in inside_transforms(graph):
            return Left(
                "autograd-function",
                "the shift is inside torch.vmap or a transform of torch.func; declare and shift in front of it",
            )
        for cu in (packing.boundaries, packing.padded):
            if cu is None:
                continue
            if cu.graph is graph and not cu < found.user:
                return Left("boundaries-late", "the boundaries are computed after the shifted tensor is used")
            if cu.graph is not graph and self.reach(cu) is None:
                return Left("boundaries-late", "the boundaries are not known where this part of the model is called")
            if self._written(cu, packing.kind, found.user):
                return Left("boundaries-written", "the boundaries are written in place between declaration and use")
        return None

    def _written(self, cu: fx.Node, kind: str, user: fx.Node) -> bool:
        """May boundaries hold other values at ``user`` than where they say how the row is cut?"""
        start, stop = cu.next, None
        if kind == "declared":  # what was written before the declaration is part of it
            marks = (n for n in cu.graph.nodes if op_name(n) == "packpass::packed")
            start = next((n for n in marks if cu in map(root_of, n.all_input_nodes[1:])), start)
        if kind in ("declared", "input"):
            scope: Boundaries | None = self
            stop = user
            while scope is not None and stop.graph is not cu.graph:
                stop, scope = scope.node or stop, scope.outer
        return mutated_after(cu.graph, cu, start, stop)

    def reach(self, cu: fx.Node) -> fx.Node | None:
        """The node that the boundaries would be handed to, or come from, in the graphs around; None if unreachable."""
        scope: Boundaries | None = self
        while scope is not None and scope.node is not None:
            if cu.graph is scope.node.graph:
                return cu if cu < scope.node else None
            scope = scope.outer
        return None

    def nodes(self, packing: Packing) -> tuple[fx.Node, fx.Node | None]:
        padded = self.local(packing.padded) if packing.padded is not None else None
        return self.local(packing.boundaries), padded

    def local(self, cu: fx.Node) -> fx.Node:
        """The boundaries in this graph; handed in as one more operand if they are not."""
        if cu.graph is self.gm.graph:
            return cu
        assert self.node is not None and self.outer is not None
        outside = self.outer.local(cu)
        places = [n for n in self.gm.graph.nodes if n.op == "placeholder"]
        for operand, place in zip(self.node.args[1:], places, strict=True):
            if operand is outside:
                return place
        with self.gm.graph.inserting_after(places[-1]) if places else self.gm.graph.inserting_before():
            place = self.gm.graph.placeholder(f"packpass_{outside.name}")
        place.meta["example_value"] = example(outside)
        self.node.args = (*self.node.args, outside)
        return place
