"""One traced iteration of a loop over rows of sizes, interpreted: every tensor becomes a term.

What an operation does is asked of `packpass.semantics`: along which loops it reads its operands and lays out its
result. Those loops, and the sizes that Dynamo made up for the iteration, are all that is needed to say where a slot
comes from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import sympy
import torch
from torch import fx

from packpass.semantics import call_of, example
from passes.ragged_grids.sizes import Names, Quotient, Ratio, Reader, Unknown, coordinates, placed, rejoined, whole
from passes.ragged_grids.terms import Applied, Form, Index, Input, Interner, Moved, Read, Term
from passes.refused import Refused

_LARGE_OF_ONE, _LARGE = 1 << 30, 1 << 16
"""Factors of one number of a document, and of several, beyond which their product may not fit into 64 bits."""


@dataclasses.dataclass(frozen=True)
class Check:
    """``left op right`` for every document, else eager fails, too."""

    left: Any
    op: str
    right: Any
    message: str

    @property
    def about(self) -> set[Any]:
        """The numbers that are compared."""
        return {*self.left.free_symbols, *self.right.free_symbols}


class Machine:
    """State while one iteration is interpreted."""

    def __init__(self, intern: Interner, names: Names, inside: set[fx.Node]) -> None:
        self.intern, self.names, self.inside = intern, names, inside
        self.size = Reader(names)
        self.values: dict[fx.Node, Any] = {}
        """`Term`, or a tuple of them."""
        self.rows: dict[Any, Term] = {}
        """What the document's row of a tensor that it writes to holds (`passes.ragged_grids.written.Rows`)."""
        self.own_views: set[fx.Node] = set()
        """Views of tensors that the document writes to which hold, as long as they are looked at, what was there in
        front of the loop."""
        self.checks: dict[Check, None] = {}
        self.assumed: list[fx.Node] = []
        """Dynamo's own assertions."""
        self.asserted: set[tuple[Any, str]] = set()
        """What the program itself asserts: a number, and how it compares with 0."""
        self.branches: list[Any] = []
        """``(condition, outcome)`` of every branch that the iteration met; None where nothing is known of it."""
        self.only_segments = False
        """Must slices by numbers of the document lie between neighbouring boundaries? Eager cuts what others lack."""
        self.taken_apart: list[Any] = []
        """Targets of the calls whose pieces are being interpreted, outermost first."""
        self._divided: dict[Any, Any] = {}
        """Quotients that are known to leave no rest where a document has slots at all -> a name for each."""

    @property
    def on_host(self) -> bool:
        """Is a call that fails a check run document by document? Elsewhere it is the end of the process."""
        return all(term.device.type == "cpu" for term in self.values.values() if isinstance(term, Term))

    def expression(self, value: Any, node: fx.Node) -> Any:
        """A size, or a number in the graph, as an expression."""
        if isinstance(value, fx.Node):
            value = example(value)
        if not isinstance(value, (int, torch.SymInt)):
            raise Refused("no-rule", f"{label(node)} uses a number that is no integer", node)
        try:
            found = self.size(value)
            if _is_large(found):
                raise Refused("index-as-number", f"{label(node)} uses a number that may need more than 64 bits", node)
            return found
        except Unknown:
            reason = f"the shape of {label(node)} depends on values of tensors, not on the document's sizes alone"
            raise Refused("no-rule", reason, node) from None

    def real(self, value: torch.SymFloat, node: fx.Node) -> Any:
        """A float that is made of integers as an expression."""
        try:
            found = self.size.real(value.node.expr)
        except Unknown:
            raise Refused("no-rule", f"{label(node)} uses a number that was made from data", node) from None
        for part in sympy.preorder_traversal(found):
            if isinstance(part, Ratio):
                if part.args[1].has(Ratio, sympy.Float):
                    raise Refused("no-rule", f"{label(node)} uses a number that is divided by a float", node)
                self.check(sympy.expand(part.args[1]), "!=", sympy.Integer(0), node, "a size is divided by 0")
        return found

    def dims(self, fake: torch.Tensor, node: fx.Node) -> tuple[Any, ...]:
        return tuple(self.expression(size, node) for size in fake.shape)

    def term(self, arg: fx.Node, user: fx.Node) -> Term:
        """The term of a tensor argument."""
        value = self.values.get(arg)
        if isinstance(value, Term):
            return value
        if arg in self.inside or not isinstance(example(arg), torch.Tensor):
            raise Refused("no-rule", f"{label(arg)} is used in a way that is not understood", user)
        fake = example(arg)
        term = Input(self.dims(fake, user), fake.dtype, fake.device, fake.requires_grad, arg)
        return self.keep(arg, term)

    def read(self, of: Term, at: Iterable[Any]) -> Read:
        """A term at places."""
        return self.intern(Read(of, tuple(at)))

    def moved(self, form: Form, read: Read) -> Term:
        """The slots that are read, as a tensor of that form; a view of a view is one view."""
        of, at = read.of, read.at
        while isinstance(of, Moved) and not any(isinstance(where, Index) for where in at):
            at = tuple(self._placed(where, of.dims, at) for where in of.read.at)
            at = tuple(where if isinstance(where, Index) else rejoined(where) for where in at)
            of = of.read.of
        if of.dims == form[0] and at == coordinates(of.dims):
            return of
        return self.intern(Moved(*form, self.read(of, at)))

    def _placed(self, where: Any, dims: tuple[Any, ...], at: tuple[Any, ...]) -> Any:
        if not isinstance(where, Index):
            return placed(where, dims, at)
        read = where.read
        inner = self.read(read.of, (self._placed(w, dims, at) for w in read.at))
        return self.intern(Index(inner, where.wraps))

    def cast(self, term: Term, dtype: torch.dtype) -> Term:
        """The same slots in a dtype."""
        if term.dtype == dtype:
            return term
        same = self.read(term, coordinates(term.dims))
        form = (term.dims, dtype, term.device, term.grad)
        return self.intern(Applied(*form, "to", True, (same, term.device, dtype), (), True))

    def keep(self, node: fx.Node, term: Term) -> Term:
        """Note the term of a node."""
        known = self.intern(term)
        self.values[node] = known
        return known

    def regroups(self, before: Any, after: Any, node: fx.Node) -> None:
        """A document's slots are laid out anew: eager demands that there are as many."""
        self.check(before, "==", after, node, "a reshape to another number of slots")
        for size, other in ((before, after), (after, before)):
            # As many, and yet each factor is at most as large: then all are the same.
            same, quotients = whole(size)
            for found in quotients if same == other else ():
                if found.args[0].is_Symbol and all(found.args[0] != known.args[0] for known in self._divided):
                    self._divided[found] = sympy.Dummy(integer=True)

    def follows(self, left: Any, right: Any) -> bool:
        """Are two sizes the same wherever the reshapes so far are allowed?"""
        return self.same(left, right)

    def same(self, left: Any, right: Any) -> bool:
        """Are two sizes the same where the document has slots?"""
        return bool(sympy.expand(self._in_parts(left) - self._in_parts(right)) == 0)

    def _in_parts(self, size: Any) -> Any:
        """A size, numbers that are known to divide as what is left of them: ``h`` is ``m * (h // m)``."""
        return size.xreplace(
            self._divided | {found.args[0]: found.args[1] * name for found, name in self._divided.items()}
        )

    def quotient(self, size: Any, by: Any) -> Any:
        """``size / by``, which leaves no rest where a document's sizes fit."""
        back = {name: found for found, name in self._divided.items()}
        tries = [
            (size, by, {}),
            (self._in_parts(size), self._in_parts(by), back),
            (size, whole(by)[0], {}),
        ]
        for have, divisor, names in tries:
            out = Quotient(have, divisor)
            if sympy.expand(out * divisor - have) == 0:
                return out.xreplace(names)
        over, under = sympy.cancel(size / by).as_numer_denom()  # where there are slots, common factors are not 0
        return over if under == 1 else Quotient(over, under)

    def state(self) -> tuple[Any, ...]:
        """What a rule may change before it finds that it cannot go on; for `restore`."""
        return dict(self.checks), dict(self._divided), dict(self.values), self.size

    def restore(self, state: tuple[Any, ...]) -> None:
        """Forget what was learned since `state` was called."""
        self.checks, self._divided, self.values, self.size = state

    def check(self, left: Any, op: str, right: Any, node: fx.Node, what: str) -> None:
        """The numbers must compare so for every document."""
        if compared(left, op, right) != sympy.true:
            self.checks[Check(left, op, right, what)] = None


def _is_large(number: Any) -> bool:
    """May a number that is worked out with 64 bits be another one than that of Python? Numbers of documents with 31
    bits fit, times others that do, and products of several of them with numbers of everyday size."""
    for part in sympy.preorder_traversal(number):
        if part.is_Integer and abs(part) > 1 << 62:
            return True
        if part.is_Mul:
            factor, rest = part.as_coeff_Mul()
            degree = sum(int(p.exp) if p.is_Pow and p.exp.is_Integer else 1 for p in sympy.Mul.make_args(rest))
            if abs(factor) > (_LARGE_OF_ONE if degree == 1 else _LARGE):
                return True
    return False


def only_branch(first: Machine, second: Machine) -> tuple[Any, Machine, Machine] | None:
    """``(condition, iteration where it holds, iteration where it fails)`` of the only branch that two iterations met;
    None if there is none, or another one."""
    if len(first.branches) != 1 or len(second.branches) != 1 or None in (*first.branches, *second.branches):
        return None
    (condition, outcome), (other, opposite) = first.branches[0], second.branches[0]
    if condition != other or outcome == opposite:
        return None
    return (condition, first, second) if outcome else (condition, second, first)


def compared(left: Any, op: str, right: Any) -> Any:
    """``left op right``, as far as it is known."""
    return getattr(sympy, {"==": "Eq", ">=": "Ge", "!=": "Ne"}[op])(left, right)


def label(node: fx.Node) -> str:
    """What a node calls, for the user."""
    call = call_of(node)
    return f"'{call.op}'" if call is not None else f"'{node.name}'"
