"""Run one iteration of a loop over documents on blocks: what every tensor of the body holds, on all ranks."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import process_group_of
from packpass.semantics import AUTOGRAD_FUNCTION, argument, blank, example, op_name
from packpass.semantics.collectives import collective_name
from packpass.semantics.effects import changes_grad_mode, written_inputs
from passes.document_loops.integers import Affine, Boundaries, Index
from passes.document_loops.machine import Machine
from passes.document_loops.op_names import name_of
from passes.fuse_all_to_all import blocks as B
from passes.fuse_all_to_all import calls
from passes.fuse_all_to_all.blocks import TOKENS, Blocks, NotMovement, Size
from passes.fuse_all_to_all.exchange import Exchange, only_source, recognise
from passes.fuse_all_to_all.filling import copied_into, places_of, put_into
from passes.fuse_all_to_all.held import FILLING, Buffer, Cut, Source, Window, reads
from passes.fuse_all_to_all.integers import UNKNOWN, integer
from passes.fuse_all_to_all.moves import MOVES, entries_of, index
from passes.fuse_all_to_all.placed import Placed, place, settle
from passes.fuse_all_to_all.scalars import Counted, Lin, Scale, from_affine
from passes.fuse_all_to_all.taken_apart import moved_by_pieces


class Body:
    """Values of one iteration. A node that is not understood has none."""

    def __init__(
        self, gm: fx.GraphModule, machine: Machine, counted: Mapping[Boundaries, Counted], scale: Scale, cp: int
    ) -> None:
        self.gm, self.machine, self.counted, self.scale, self.cp = gm, machine, counted, scale, cp
        self.values: dict[Any, Any] = {}
        self.sources: dict[Source, tuple[Blocks, int]] = {}
        """Blocks of every source, and the number of its first one."""
        self.cuts: dict[fx.Node, Cut] = {}
        self.placed: dict[Source, Placed] = {}
        """Outer tensors whose document the body fills part by part."""
        self.exchanged: set[fx.Node] = set()
        """Nodes whose value went through an all-to-all."""
        self.group: str | None = None
        self.ways_back: set[str] = set()
        """What becomes of gradients of what was gathered: as in `blocks.way_back`, or none."""
        self.own_affair: dict[fx.Node, list[fx.Node]] = {}
        """Backwards of which each rank proves for itself what becomes of what it gets, since they name its own part;
        with what all have in common: the calls that make what is sent."""
        self.summed: int | None = None
        """In a backward: how many blocks of the gradient each rank has."""
        self.functions = 0
        """Functions that are being run."""
        self.spelled_out: list[list[int] | None] = []
        """Numbers of indices that are no constants of the calls themselves (see `spelled_out`)."""

    def rank(self) -> int:
        """This process in the group of the exchanges, if there was one yet."""
        return 0 if self.group is None else torch.distributed.get_rank(process_group_of(self.group))

    # --- running --------------------------------------------------------------------------------------------

    def run(self, nodes: Sequence[fx.Node]) -> None:
        for node in nodes:
            self.step(node)
        settle(self)

    def step(self, node: fx.Node) -> None:
        for n in node.all_input_nodes:
            buffer = self.values.get(n)
            if isinstance(buffer, Buffer) and buffer.content is None:
                buffer.read_before |= reads(node, n)
        try:
            if name_of(node) == "setitem":
                cut = self._cut(self._window(node.args[0], node.args[1], node))
                if cut is not None:
                    self.cuts[node] = dataclasses.replace(cut, written=True)
            value = self.evaluate(node)
            if value is UNKNOWN and name_of(node) in FILLING and not self.functions:
                place(self, node)
        except NotMovement:
            value = UNKNOWN
        if value is UNKNOWN:
            return
        self.values[node] = value
        if collective_name(node.target) or any(n in self.exchanged for n in node.all_input_nodes):
            self.exchanged.add(node)

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        """The results of a submodule; values of its nodes are forgotten."""
        module: fx.GraphModule = getattr(self.gm, name)
        self.functions += 1
        try:
            return self._called(module, iter(arguments))
        finally:
            self.functions -= 1

    def _called(self, module: fx.GraphModule, given: Iterator[Any]) -> Any:
        with self.aside():
            for node in module.graph.nodes:
                if node.op == "placeholder":
                    value = next(given, UNKNOWN)
                    if value is not UNKNOWN:
                        self.values[node] = value
                elif node.op == "output":
                    return fx.map_arg(node.args[0], self._result)
                elif not changes_grad_mode(node):
                    self.step(node)
                    if node not in self.values and written_inputs(node):
                        raise NotMovement("a function that changes a tensor in place")
        raise NotMovement("a function without a result")

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, nothing is known of the body's nodes, and what is learned is forgotten."""
        outer, exchanged = self.values, self.exchanged
        self.values, self.exchanged = {}, set()
        try:
            yield
        finally:
            self.values, self.exchanged = outer, exchanged

    def _result(self, node: fx.Node) -> Any:
        value = self.tensor(node) if isinstance(example(node), (torch.Tensor, tuple)) else self.scalar(node)
        parts = value if isinstance(value, tuple) else (value,)  # the sizes of a tensor are several numbers
        if not isinstance(value, Blocks) and not all(isinstance(part, (Lin, Size)) for part in parts):
            raise NotMovement("a result that is not understood")
        return value

    def sees_through(self, node: fx.Node) -> bool:
        """Is this understood? New memory that nothing of the body fills (``h.new_ones(..)``) is not."""
        value = self.values.get(node, UNKNOWN)
        return value is not UNKNOWN and not (isinstance(value, Buffer) and value.content is None)

    # --- values ---------------------------------------------------------------------------------------------

    def tensor(self, arg: Any) -> Any:
        """Blocks of an argument, or the tuple of them, or None."""
        value = self.values.get(arg) if isinstance(arg, fx.Node) else None
        return value.content if isinstance(value, Buffer) else value

    def blocks(self, arg: Any) -> Blocks:
        value = self.tensor(arg)
        if not isinstance(value, Blocks):
            raise NotMovement("a tensor that is not understood")
        return value

    def dims(self, arg: Any) -> tuple[B.Dim, ...] | None:
        """The sizes of a tensor, of a buffer that is not filled, too; None if they are not understood."""
        value = self.values.get(arg) if isinstance(arg, fx.Node) else None
        if isinstance(value, Buffer):
            value = value.content or value.places
        return value.dims if isinstance(value, Blocks) else None

    def exchange(self, node: fx.Node) -> Exchange | None:
        """The one exchange that gives a tensor, if it is known to be one."""
        value = self.tensor(node)
        return recognise(value, self.sources, self.cp, self.scale.shard) if isinstance(value, Blocks) else None

    def sizes(self, arg: Any) -> tuple[Lin | Size, ...] | None:
        """The sizes of another tensor, as one argument."""
        known = self.values.get(arg) if isinstance(arg, fx.Node) else None
        return known if isinstance(known, tuple) and all(isinstance(size, (Lin, Size)) for size in known) else None

    def scalar(self, arg: Any) -> Lin | Size | None:
        """An integer argument."""
        if isinstance(arg, (Lin, Size)):
            return arg
        if isinstance(arg, bool):
            return None
        if isinstance(arg, int):
            return Lin.of(arg)
        if not isinstance(arg, fx.Node):
            return None
        if isinstance(self.values.get(arg), (Lin, Size)):
            known: Lin | Size = self.values[arg]
            return known
        value = self.machine.values.get(arg)
        if isinstance(value, Affine):
            return from_affine(value, self.counted, self.scale)
        fake = example(arg)
        if arg not in self.machine.inside and isinstance(fake, torch.SymInt):
            return Size(1, frozenset({str(fake)}))
        return None

    def size(self, arg: Any) -> Size:
        value = self.scalar(arg)
        if value is None:
            raise NotMovement("a size that is not understood")
        return value if isinstance(value, Size) else value.size()

    def evaluate(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return UNKNOWN
        fake = example(node)
        # A tensor of one integer counts as that integer.
        if not isinstance(fake, torch.Tensor) or (not fake.dim() and not fake.is_floating_point()):
            value = integer(self, node)
            if value is not UNKNOWN:
                return value
        if collective_name(node.target):
            return calls.collective(self, node)
        if op_name(node) == AUTOGRAD_FUNCTION:
            return calls.function(self, node)
        name = name_of(node)
        if name in ("getitem", "narrow", "segment", "split_get"):
            read = self._read(node, name)
            if read is not None:
                return read
        source = argument(node, 0, "input")
        if name == "cat":
            parts = argument(node, 0, "tensors")
            dim = argument(node, 1, "dim", node.kwargs.get("axis", 0))
            found = [self.blocks(p) for p in parts]
            return B.cat(found, dim % found[0].rank)
        if name == "stack":
            found = [self.blocks(p) for p in argument(node, 0, "tensors")]
            d = argument(node, 1, "dim", 0) % (found[0].rank + 1)
            return B.cat([B.unsqueeze(p, d) for p in found], d)
        if blank(node):  # a buffer that the body fills
            return Buffer(places_of(self, node))
        if name == "copy_":
            return copied_into(self, node)
        if name == "setitem":
            return put_into(self, node)
        value = self.tensor(source)
        if isinstance(value, (tuple, list)):
            index = node.args[1] if name == "getitem" else None
            return value[index] if isinstance(index, int) else UNKNOWN
        fn = MOVES.get(name)
        if fn is None:
            moved = moved_by_pieces(self, node)
        else:
            moved = fn(self, node, value) if isinstance(value, Blocks) else None
        return UNKNOWN if moved is None else moved

    # --- documents ------------------------------------------------------------------------------------------

    def _read(self, node: fx.Node, name: str) -> Blocks | None:
        """``x[.., s:e, ..]`` of an outer tensor, by the document's own boundaries or those of its shard; or a part of
        that, which begins and ends with chunks."""
        window = None
        if name == "getitem":
            window = self._window(node.args[0], node.args[1], node)
        elif name == "narrow":
            window = self._narrowed(node)
        cut = self._segment(node) if name in ("segment", "split_get") else self._cut(window)
        if cut is None:
            return None if window is None else self._part(window, node)
        whole = self._source(cut.source)
        out = index(self, node, whole, cut.rest) if cut.rest else whole
        self.cuts[node] = cut
        return out

    def is_outer(self, base: Any) -> bool:
        known = isinstance(base, fx.Node) and base not in self.machine.inside and base not in self.values
        return known and isinstance(example(base), torch.Tensor) and example(base).dim() > 0

    def _segment(self, node: fx.Node) -> Cut | None:
        """A document that an earlier loop put in a list, or a part of ``split``."""
        base, boundaries, index, dim = node.args
        if self.machine.values.get(index) != Affine.of(Index()) or not self.is_outer(base):  # type: ignore[arg-type]
            return None
        counted = self.counted[Boundaries(boundaries, node.target is markers.SPLIT_GET)]  # type: ignore[arg-type]
        if counted.offset:
            return None
        factor = counted.factor
        sharded = self._extent(Lin(start=factor), Lin(start=factor, unit=factor * self.scale.chunks))
        return None if sharded is None else Cut(Source(base, dim, sharded), ())  # type: ignore[arg-type]

    def _narrowed(self, node: fx.Node) -> Window | None:
        base, dim = argument(node, 0, "input"), argument(node, 1, "dim")
        start, length = (self.scalar(argument(node, i, n)) for i, n in ((2, "start"), (3, "length")))
        if not self.is_outer(base) or type(dim) is not int or not isinstance(start, Lin) or not isinstance(length, Lin):
            return None
        rest = (slice(None),) * example(base).dim()
        return Window(base, dim % len(rest), start, start.plus(length), rest, dim % len(rest))

    def _window(self, base: Any, index: Any, node: fx.Node) -> Window | None:
        """The one slice in an index of an outer tensor that is another one for every document."""
        if not self.is_outer(base):
            return None
        given = index if isinstance(index, tuple) else (index,)
        if any(isinstance(e, (tuple, list, fx.Node)) for e in given):
            return None
        entries = entries_of(index, rank := example(base).dim())
        cut = [at for at, e in enumerate(entries) if isinstance(e, slice) and self._moving(e)]
        if len(cut) != 1 or entries[cut[0]].step not in (None, 1) or sum(e is not None for e in entries) != rank:
            return None
        at, entry = cut[0], entries[cut[0]]
        start, stop = (self.scalar(e) for e in (entry.start, entry.stop))
        if not isinstance(start, Lin) or not isinstance(stop, Lin):
            return None
        dim = sum(e is not None for e in entries[:at])
        return Window(base, dim, start, stop, (*entries[:at], slice(None), *entries[at + 1 :]), at)

    def _moving(self, entry: slice) -> bool:
        bounds = [self.scalar(b) for b in (entry.start, entry.stop) if isinstance(b, fx.Node)]
        return any(isinstance(b, Lin) and (b.start or b.unit) for b in bounds)

    def _cut(self, window: Window | None) -> Cut | None:
        """The one document that a window is."""
        sharded = None if window is None else self._extent(window.start, window.stop)
        if window is None or sharded is None:
            return None
        rest = window.rest if any(e != slice(None) for e in window.rest) else ()
        return Cut(Source(window.base, window.dim, sharded), rest)

    def _part(self, window: Window, node: fx.Node) -> Blocks | None:
        """What is in a window that is whole chunks of one document."""
        for sharded, _, count in self._documents():
            if window.start.start == window.stop.start == count:
                low, high = (end.plus(Lin(start=count), -1) for end in (window.start, window.stop))
                rest = (*window.rest[: window.at], slice(low, high), *window.rest[window.at + 1 :])
                return index(self, node, self._source(Source(window.base, window.dim, sharded)), rest)
        return None

    def places(self, base: Any, given: Any, node: fx.Node) -> Blocks | None:
        """What an index of an outer tensor reads, or writes."""
        window = self._window(base, given, node)
        return None if window is None else self._part(window, node)

    def _documents(self) -> list[tuple[bool, int, Fraction]]:
        """Of this rank's shard of the document (True) and of the document: how many chunks it is, and how its begin
        counts the boundaries in use."""
        whole, shard = self.scale.of_whole_row(self.cp), self.scale.shard
        over = self.cp if whole else 1
        return [(True, shard, Fraction(1, over)), (False, shard * self.cp, Fraction(self.cp, over))]

    def _extent(self, start: Lin, stop: Lin) -> bool | None:
        """Is the window this rank's shard of the document (True), the document (False), or something else?"""
        if start.unit or start.const:
            return None
        width = stop.plus(start, -1)
        for sharded, chunks, count in self._documents():
            if width == Lin(unit=Fraction(chunks)) and start.start == count:
                return sharded
        return None

    def _source(self, source: Source) -> Blocks:
        if source not in self.sources:
            chunks = self.scale.shard * (1 if source.sharded else self.cp)
            dims: list[B.Dim] = []
            for d, size in enumerate(example(source.node).shape):
                if d == source.dim:
                    dims.append((chunks, TOKENS))
                else:
                    dims.append((size,) if isinstance(size, int) else (str(size),))
            atoms = [f for dim in dims for f in dim if isinstance(f, str)]
            if len(set(atoms)) != len(atoms) or any(f == 0 for dim in dims for f in dim):
                raise NotMovement("a tensor with two dimensions of one unknown size, or without elements")
            base = sum(b.data.size for b, _ in self.sources.values())
            self.sources[source] = B.fresh(dims, self.cp, base), base
        return self.sources[source][0]

    def detached(self, value: Blocks) -> Blocks:
        """What has been moved of ``x``, as if it had been moved of ``x.detach()``."""
        found = only_source(value, self.sources)
        if found is None:
            raise NotMovement("no gradient of tensors of several rows")
        source, _, base = found
        self._source(gone := dataclasses.replace(source, detached=True))
        return Blocks(value.dims, value.data - base + self.sources[gone][1])
