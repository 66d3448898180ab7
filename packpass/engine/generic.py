"""Is a captured loop body generic? Then what was traced for two iterations holds for every document.

`packpass.capture` refuses bodies in which anything but the index could tell one document from another; what it lets
through is compared here, node by node.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import sympy
import torch
from torch import fx

from packpass import markers
from packpass._compat import free_unbacked_symbols, size_as_traced
from packpass.capture.assumed import EQUAL_SIZES
from packpass.capture.offsets import NOT_NEGATIVE
from packpass.decisions.location import location_of_node
from packpass.semantics import call_of, example, op_name
from packpass.semantics.effects import reshapes_in_place
from packpass.semantics.pointwise import is_pointwise


class NotReplayable(Exception):
    """The loop is not proven generic, or the graph cannot be cut at it; the reason is for the user."""


Iteration = tuple[fx.Node, list[fx.Node], fx.Node]


def regions(graph: fx.Graph) -> dict[int, list[Iteration]]:
    found: dict[int, list[Iteration]] = {}
    open_: tuple[fx.Node, list[fx.Node]] | None = None
    for node in graph.nodes:
        if node.target is markers.LOOP_BEGIN:
            if open_ is not None:
                raise NotReplayable("a loop over documents inside a loop over documents")
            open_ = (node, [])
        elif node.target is markers.LOOP_END:
            assert open_ is not None
            found.setdefault(open_[0].args[1], []).append((*open_, node))  # type: ignore[arg-type]
            open_ = None
        elif open_ is not None:
            open_[1].append(node)
    return found


def is_symbolic(node: fx.Node) -> bool:
    """Integer arithmetic on sizes; Dynamo shares such nodes between iterations, so they are compared as expressions."""
    value = node.meta.get("example_value")
    return (
        isinstance(value, (int, torch.SymInt, torch.SymBool))
        and node.op == "call_function"
        and node.target not in markers.MARKERS
    )


def is_check(node: fx.Node) -> bool:
    return node.target is torch.ops.aten._assert_scalar.default


def wants_lengths(node: fx.Node) -> bool:
    """Does it ask for something that only a rewrite needs?"""
    return node.args[1:] == (NOT_NEGATIVE,)


def prove_generic(iterations: list[Iteration]) -> None:
    """The second iteration must be the first with another index."""
    if len(iterations) != 2:
        raise NotReplayable("the loop was not traced twice")
    (begin, body, _), (begin_again, body_again, _) = iterations
    proof = Proof()
    proof.pair(begin, begin_again)
    first, second = ([n for n in nodes if not is_symbolic(n) and not is_check(n)] for nodes in (body, body_again))
    if len(first) != len(second):
        raise NotReplayable("two iterations of the loop do different things")
    for one, two in zip(first, second, strict=True):
        proof.compare(one, two)
        proof.pair(one, two)
    for node in body:
        shape_is_known(node)
    for node in begin.graph.nodes:
        if node.target is markers.LIST_COLLECT and node.args[2] == begin.args[1]:
            collected: tuple[Any, ...] = node.args
            if proof.twin.get(collected[1], collected[1]) is not collected[0]:
                raise NotReplayable("two iterations append different values")
    inside = {begin, begin_again, *body, *body_again}
    for node in inside:
        for user in node.users:
            if user in inside or user.target in (markers.LOOP_END, *markers.LOOP_SKIP) or only_checks(user):
                continue
            if user.target is not markers.LIST_COLLECT:
                raise NotReplayable(f"{node.name} of one document is used after the loop")


def shape_is_known(node: fx.Node) -> None:
    """Python has seen the shapes of the traced iteration: refuse ops after which another document has another rank."""
    name = op_name(node)
    if reshapes_in_place(name):  # Dynamo tracks that in Python for the two traced iterations only
        raise NotReplayable(f"the shape of a tensor is changed in place ({name})")
    if name == "squeeze":
        source = node.args[0] if node.args else node.kwargs.get("input")
        value = source.meta.get("example_value") if isinstance(source, fx.Node) else None
        if value is None or any(free_unbacked_symbols(s) for s in value.shape if isinstance(s, torch.SymInt)):
            raise NotReplayable("whether squeeze drops a dimension depends on a document's length")


def refuse_broadcasts(body: list[fx.Node]) -> None:
    """Raise `NotReplayable` where two lengths meet that may differ (``x[s : s + 1] - x[s:e]``): torch takes it that
    they are equal, and would be wrong about a length of 1."""
    lengths = _lengths(body)
    for node in body:
        _is_not_broadcast(node, lengths)


def _is_not_broadcast(node: fx.Node, lengths: dict[Any, Any]) -> None:
    operands = [value for n in node.all_input_nodes if isinstance(value := example(n), torch.Tensor)]
    call = call_of(node) if len(operands) > 1 else None
    if call is None or not is_pointwise(call.op):
        return
    for sizes in itertools.zip_longest(*(reversed(value.shape) for value in operands), fillvalue=1):
        written = [sympy.sympify(size_as_traced(size)) for size in sizes]
        if len({sympy.expand(size.subs(lengths)) for size in written if size != 1}) > 1:
            raise NotReplayable(f"{EQUAL_SIZES} at {location_of_node(node) or node.name}")


def _lengths(body: list[fx.Node]) -> dict[Any, Any]:
    """What the sizes of slices with two bounds are, as the difference of these."""
    found = {}
    for node in body:
        fake = example(node)
        if node.target is not operator.getitem or not isinstance(fake, torch.Tensor):
            continue
        key: Any = node.args[1]
        cuts = [k for k in (key if isinstance(key, tuple) else (key,)) if isinstance(k, slice) and k.stop is not None]
        sizes = [size for size in map(size_as_traced, fake.shape) if getattr(size, "is_Symbol", False)]
        if len(cuts) == 1 and len(sizes) == 1 and cuts[0].step in (None, 1):
            given = (cuts[0].start or 0, cuts[0].stop)
            start, stop = (size_as_traced(example(v)) if isinstance(v, fx.Node) else v for v in given)
            found[sizes[0]] = stop - start
    return found


def hoist_sizes(graph: fx.Graph, loops: dict[int, list[Iteration]]) -> None:
    """Sizes of outside tensors that are first computed in a body belong before the loop."""
    for iterations in loops.values():
        inside = {n for begin, body, end in iterations for n in (begin, *body, end)}
        for _, body, _ in iterations:
            for node in body:
                if is_symbolic(node) and not any(i in inside for i in node.all_input_nodes):
                    iterations[0][0].prepend(node)
                    inside.discard(node)


class Proof:
    """Pairs of nodes of two iterations, and of the data-dependent sizes they made."""

    def __init__(self) -> None:
        self.twin: dict[fx.Node, fx.Node] = {}
        self.symbols: dict[Any, Any] = {}

    def pair(self, one: fx.Node, two: fx.Node) -> None:
        self.twin[two] = one
        a, b = one.meta.get("example_value"), two.meta.get("example_value")
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.dim() != b.dim() or a.dtype != b.dtype:
                raise NotReplayable(f"two iterations of the loop differ at {one.name}")
            for x, y in zip(a.shape, b.shape, strict=True):
                self._pair_sizes(x, y)
        else:
            self._pair_sizes(a, b)

    def _pair_sizes(self, x: Any, y: Any) -> None:
        if isinstance(x, torch.SymInt) and isinstance(y, torch.SymInt) and y.node.expr.is_Symbol:
            self.symbols.setdefault(y.node.expr, x.node.expr)

    def _expression(self, value: Any) -> Any:
        return value.node.expr.xreplace(self.symbols) if isinstance(value, (torch.SymInt, torch.SymBool)) else value

    def compare(self, one: fx.Node, two: fx.Node) -> None:
        marker = one.target in (*markers.LOOP_SKIP, markers.LOOP_CHECK)
        args = (one.args[:2], two.args[:2]) if marker else (one.args, two.args)
        if (
            one.op != two.op
            or one.target != two.target
            or not self._same(*args)
            or not self._same(one.kwargs, two.kwargs)
        ):
            raise NotReplayable(f"two iterations of the loop differ at {one.name} and {two.name}")

    def _same(self, a: Any, b: Any) -> bool:
        if isinstance(a, fx.Node):
            if not isinstance(b, fx.Node):
                return False
            if b in self.twin:
                return self.twin[b] is a
            x, y = a.meta.get("example_value"), b.meta.get("example_value")
            if isinstance(x, (int, torch.SymInt, torch.SymBool)) and is_symbolic(b):
                left = x.node.expr if isinstance(x, (torch.SymInt, torch.SymBool)) else x
                return bool(left == self._expression(y))
            return a is b
        if isinstance(a, (tuple, list)):
            return type(a) is type(b) and len(a) == len(b) and all(map(self._same, a, b))
        if isinstance(a, dict):
            return isinstance(b, dict) and a.keys() == b.keys() and all(self._same(a[k], b[k]) for k in a)
        if isinstance(a, slice):
            return isinstance(b, slice) and self._same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
        return type(a) is type(b) and bool(a == b)


def only_checks(node: fx.Node) -> bool:
    """Is this an assertion, or integer arithmetic that only assertions use?"""
    return is_check(node) or (is_symbolic(node) and all(only_checks(user) for user in node.users))
