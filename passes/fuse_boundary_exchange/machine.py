"""Runs one iteration of a loop body on `values`: which slots of the document, numbers and messages every tensor holds.

Only what a roll of shards is written with has a meaning here; everything else is refused. Messages follow
eager's rules: what is being sent may be read but not written, what is being received neither, until it is waited for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import is_collective
from packpass.layout.sources import SAME_BOUNDARIES
from packpass.semantics import AUTOGRAD_FUNCTION, argument, example, op_name
from packpass.semantics.effects import effects_of, written_inputs
from packpass.semantics.integers import computed
from packpass.semantics.pointwise import whole_divisor
from passes.document_loops.boundaries import boundary_vector, unchanged
from passes.document_loops.op_names import is_size_check, label, name_of
from passes.fuse_boundary_exchange import contents, functions
from passes.fuse_boundary_exchange.values import (
    ZERO,
    Form,
    Int,
    Memory,
    Needs,
    Pending,
    Run,
    Stack,
    View,
    cut,
    normal,
    number,
)
from passes.refused import Refused, refuse_stale

OPAQUE = object()
"""Value of an integer that only Dynamo's own assertions look at."""


@dataclasses.dataclass
class Message:
    """A request: to send the slots ``what`` to a global rank, or to receive as many from it."""

    number: tuple[int, int]
    """That of the request, and which part of what it sends or receives."""
    sends: bool
    peer: int
    group: str
    node: fx.Node
    memory: Memory
    empty: int
    """Slots that it has for a document without slots."""
    what: tuple[Run, ...] = ()
    waited: bool = False


Rule = Callable[["Machine", fx.Node], Any]
RULES: dict[Any, Rule] = {}
"""Op name, or marker -> what the node's value is. Filled by `rules`."""
PARTWISE: set[Rule] = set()
"""Those of `RULES` that do to a stack what they do to each of its parts. Filled by `rules`."""


class Machine:
    """State while one iteration is interpreted.

    ``index`` is the number of its document, ``start`` the node at which the loop begins; ``scale`` is 1 for boundaries
    of shards, the number of ranks for those of whole documents; ``form`` that of a shard.
    """

    def __init__(self, inside: set[fx.Node], index: fx.Node, start: fx.Node, scale: int, form: Form) -> None:
        self.inside, self.start, self.scale, self.form = inside, start, scale, form
        self.whole = form.whole
        self.values: dict[fx.Node, Any] = {index: Int(index=1)}
        self.memories: dict[tuple[fx.Node, int], Memory] = {}
        self.messages: list[Message] = []
        self.boundaries: tuple[fx.Node, int] | None = None
        self.calls_functions = False
        self.halos: list[functions.Halo] = []
        self.detaches = False
        self.raises_if_empty = False
        """Does eager fail for a document without slots, because a slot of it is selected?"""
        self.needs = Needs.NONE
        self.skips_empty = False
        """Has the body left out documents without slots?"""

    # --- values ---------------------------------------------------------------------------------------------

    def step(self, node: fx.Node) -> None:
        """One node of the body."""
        name = name_of(node)
        if (
            node.op == "get_attr"
            or is_size_check(node)
            or name in ("sym_storage_offset", "sym_stride")
            or node.target is markers.GROUP
        ):
            return
        if op_name(node) == AUTOGRAD_FUNCTION:
            self.calls_functions = True
            self.values[node] = functions.call(self, node)
            return
        if self._is_number(node):
            if written_inputs(node) or is_collective(node.target) or effects_of(node).random:
                raise Refused("no-rule", f"{label(node)} does more than to compute a number", node)
            self.values[node] = self._scalar(node, name)
            return
        rule = RULES.get(node.target if node.target in markers.MESSAGES or node.target in markers.MARKERS else name)
        if rule is None:
            raise Refused("no-rule", f"{label(node)} between the messages of a roll is not understood", node)
        self.values[node] = self._of_parts(rule, node) if rule in PARTWISE else rule(self, node)

    def _of_parts(self, rule: Rule, node: fx.Node) -> Any:
        """What a rule makes of its operands: of stacked ones, a stack of what it makes of their parts."""
        stacks = {arg: self.values[arg] for arg in node.all_input_nodes if isinstance(self.values.get(arg), Stack)}
        if not stacks:
            return rule(self, node)
        first, *others = stacks.values()
        if any((len(other.parts), other.axis) != (len(first.parts), first.axis) for other in others):
            raise Refused("dim-mismatch", "tensors that are stacked in different ways meet", node)
        made = []
        try:
            for k in range(len(first.parts)):
                self.values.update({arg: stack.parts[k] for arg, stack in stacks.items()})
                made.append(rule(self, node))
        finally:
            self.values.update(stacks)
        return Stack(tuple(made), first.axis) if isinstance(made[0], View) else None

    def _is_number(self, node: fx.Node) -> bool:
        """Not a tensor, or one of a single integer or bool that is no slot of a document: it counts as the number."""
        fake = example(node)
        if isinstance(fake, torch.Tensor):
            vector = fake.dim() == 0 and fake.dtype in (torch.int32, torch.int64, torch.bool)
            return vector and bool(node.args) and not isinstance(self.values.get(node.args[0]), (View, Stack, tuple))  # type: ignore[arg-type]
        return isinstance(fake, (int, float, bool, torch.SymInt, torch.SymBool, torch.SymFloat))

    def another(self, index: fx.Node) -> Machine:
        """A machine for the backward of a function, which has a body and messages of its own."""
        return Machine(set(), index, self.start, self.scale, self.form)

    def finish(self) -> None:
        """End of the body."""
        for message in self.messages:
            if not message.waited:
                raise Refused("message-wait", "a message is not waited for in its own iteration", message.node)

    def value(self, arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            if arg in self.values:
                return self.values[arg]
            fake = example(arg)
            if isinstance(fake, int) and not isinstance(fake, bool):
                return number(fake)
            return OPAQUE if arg not in self.inside and not isinstance(fake, torch.Tensor) else arg
        return number(arg) if isinstance(arg, int) and not isinstance(arg, bool) else arg

    def is_outer(self, value: Any) -> bool:
        """Is this value a row that the loop finds?"""
        return isinstance(value, fx.Node) and value not in self.inside

    def view(self, arg: Any, node: fx.Node) -> View:
        found = self.value(arg)
        if not isinstance(found, View):
            raise Refused("no-rule", f"{label(node)} of a tensor that is no part of a document", node)
        return found

    def is_document(self, view: View) -> bool:
        """Has it a slot for each of the document, and none for a document without slots that eager gets through?"""
        return self._is_as_long(view) and (self.raises_if_empty or not view.empty)

    def one_too_many(self, view: View) -> bool:
        """Is it the document but for one slot where that has none, as what is received is? Where all ranks do the
        same, each waits for a slot of which its neighbour sends nothing, and eager's messages fail."""
        sends_nothing = bool(self.messages) and not any(m.empty for m in self.messages if m.sends)
        return self._is_as_long(view) and sends_nothing and not self.is_document(view)

    def _is_as_long(self, view: View) -> bool:
        return bool(view.kept) and view.length == self.whole

    def integer(self, arg: Any) -> Int | None:
        found = self.value(arg)
        return found if isinstance(found, Int) else None

    def _scalar(self, node: fx.Node, name: str) -> Any:
        """Boundaries, lengths, and arithmetic on them."""
        if name in ("select", "getitem"):
            vector = node.args[0]
            held = self.values.get(vector)  # type: ignore[arg-type]
            if isinstance(held, tuple) and type(node.args[1]) is int:
                return held[node.args[1]]
            at = self.integer(argument(node, 2, "index") if name == "select" else node.args[1])
            if isinstance(vector, fx.Node) and at is not None and vector not in self.values:
                return self.boundary(vector, at, node)
        if name in ("size", "sym_size"):
            return self._size(node)
        found = computed(node, self.integer, _divided)
        return OPAQUE if found is None else found

    def boundary(self, vector: fx.Node, at: Int, node: fx.Node) -> Any:
        """``cu_seqlens[i + k]``, or the same of a vector that holds its quotient by a constant."""
        divisor, offset = 1, 0
        while True:
            vector, more, lengths = boundary_vector(vector)
            offset += more
            source, by = (*vector.args, None, None)[:2]
            if op_name(vector) in SAME_BOUNDARIES and isinstance(source, fx.Node):  # the exchange checks that they fit
                vector = source
                continue
            quotient = whole_divisor(vector, by)
            if quotient is None or not isinstance(source, fx.Node):
                break
            if not unchanged(source, vector) or not unchanged(vector, vector.next):
                raise Refused("boundaries-written", "boundaries are changed after they were read", vector)
            vector, divisor = source, divisor * quotient
        if lengths or at.index != 1 or at.start or at.half:
            return OPAQUE
        k = at.const + offset
        if self.boundaries is None:
            self.boundaries = vector, k
        if self.boundaries[0] is not vector:
            raise Refused("two-boundaries", "the body cuts tensors by two different sets of boundaries", node)
        k -= self.boundaries[1]
        if k not in (0, 1):
            raise Refused("not-a-segment", "a boundary of another document is used", node)
        found = Int(start=self.scale).plus(self.whole, self.scale * k).over(divisor)
        return OPAQUE if found is None else found

    def _size(self, node: fx.Node) -> Any:
        view = self.value(node.args[0])
        dim = argument(node, 1, "dim")
        if not isinstance(view, View) or type(dim) is not int or not view.kept or view.dim is None:
            return OPAQUE
        rank = example(node.args[0]).dim()
        return view.length if dim % rank == rank + view.dim else OPAQUE

    # --- memory ---------------------------------------------------------------------------------------------

    def outer(self, base: fx.Node, start: Int, stop: Int, dim: int, node: fx.Node) -> View:
        """Slots ``[start, stop)`` of an outer row: they must lie in this document. If they do not where it has no
        slots, it `Needs` some."""
        low, length = start.plus(Int(start=1), -1), stop.plus(start, -1)
        high = low.plus(length)
        ends = (low, length, self.whole.plus(high, -1))
        if not all(end.at_least(ZERO) for end in ends):
            raise Refused("not-a-segment", "a slice of the row is not this rank's part of one document", node)
        if any(self.form.if_empty(end) < 0 for end in ends) and not self.skips_empty:
            self.needs = max(self.needs, Needs.FOLLOWED if self.form.if_empty(low) >= 0 else Needs.ALL)
        key = (base, dim)
        memory = self.memories.get(key)
        if memory is None:
            runs = contents.before(base, self.start, dim, self.whole)
            memory = self.memories[key] = Memory(runs, self.whole, 0, key)
        return View(memory, low, length, 0, dim, True)

    def read(self, view: View, node: fx.Node) -> tuple[Run, ...]:
        for memory in (view.memory, *(other for other, _ in view.memory.beside)):
            refuse_stale(memory, node)
        if any(other.version != version for other, version in view.memory.beside):
            raise Refused("stale-view", "a view is used after the tensor it views was changed", node)
        runs = normal(cut(view.memory.runs, view.start, view.start.plus(view.length), node))
        if any(isinstance(run.what, Pending) for run in runs):
            raise Refused("message-wait", "what is received is used before the message is waited for", node)
        return runs

    def write(self, view: View, runs: tuple[Run, ...], node: fx.Node) -> None:
        memory = view.memory
        if memory.parent is not None:
            raise Refused("write-through-view", "a view, or what may be one, is changed in place", node)
        end = view.start.plus(view.length)
        old = cut(memory.runs, view.start, end, node)
        if memory.sending or any(isinstance(run.what, Pending) for run in old):
            raise Refused("message-wait", "memory is changed while a message is on its way", node)
        before, after = cut(memory.runs, ZERO, view.start, node), cut(memory.runs, end, memory.length, node)
        memory.runs = normal([*before, *runs, *after])
        memory.version += 1
        memory.function = None

    def fresh(self, runs: tuple[Run, ...], like: View) -> View:
        """A new tensor of the form of a view."""
        return View(Memory(runs, like.length, like.empty), ZERO, like.length, like.empty, like.dim, like.kept)


def _divided(name: str, value: Int, by: int) -> Int | None:
    exact = value.over(by)
    return ZERO if exact is not None and name == "remainder" else exact
