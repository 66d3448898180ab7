"""A branch on a number of the document, of which one way is what the other makes of one such number.

    frames = arange(h * w)
    if t > 1:
        frames = (frames + arange(t)[:, None] * (h * w)).flatten()

Capture has followed one way in each traced iteration. Where the way for few frames leaves what the other one does with
one frame, both are the other way with ``max(t, 1)`` frames; nothing else is done here. For integers, which are worked
out from where they are, that can be seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import sympy

from passes.ragged_grids.asked import asked_of
from passes.ragged_grids.machine import Check, Machine, compared, only_branch
from passes.ragged_grids.sizes import Quotient, Remainder, coordinates
from passes.ragged_grids.steps import entry
from passes.ragged_grids.terms import Numbers, Term
from passes.refused import Refused

_NOT_GENERIC = "two iterations of the loop do different things"


@dataclasses.dataclass(frozen=True)
class Arms:
    """Documents with ``number >= least`` go the way of ``many``, others that of ``few``; ``least`` is None if ``few``
    is for one number only, ``last``. ``last``: the largest number (or the only one) that goes the way of ``few``."""

    few: Machine
    many: Machine
    number: Any
    last: Any
    exactly: bool

    def at_last(self, found: Any) -> Any:
        """An expression for the number that ``few`` is for."""
        return _again(found, lambda e: e.xreplace({self.number: self.last}))

    def for_all(self, found: Any) -> Any:
        """An expression of ``many``, for all documents."""
        if self.exactly:
            return found
        return _again(found, lambda e: e.xreplace({self.number: sympy.Max(self.number, self.last)}))

    def term(self, terms: tuple[Term, Term]) -> Term:
        """What documents leave that go either way; ``terms``: what each of `few` and `many` leaves."""
        few, many = terms
        if few is many:
            return few
        values = [entry(m, t, coordinates(t.dims)) for m, t in ((self.few, few), (self.many, many))]
        forms = [(t.dtype, t.device, len(t.dims)) for t in terms]
        if None in values or forms[0] != forms[1]:
            raise Refused("not-generic", f"{_NOT_GENERIC}, and what they leave is not worked out from sizes alone")
        if not self._same(values[0], values[1]) or not all(map(self._same, few.dims, many.dims)):
            raise Refused("not-generic", _NOT_GENERIC)
        if any(map(self._varies, (values[0], *few.dims))):
            raise Refused("not-generic", f"{_NOT_GENERIC}, one of them by a number that the branch asks for")
        dims = tuple(self.for_all(size) for size in many.dims)
        return self.many.intern(Numbers(dims, many.dtype, many.device, False, self.for_all(values[1])))

    def _varies(self, found: Any) -> bool:
        """Does an expression of ``few`` differ among the documents that go that way?"""
        return not self.exactly and self.number in found.free_symbols

    def _same(self, few: Any, many: Any) -> bool:
        return bool(sympy.expand(self.at_last(few) - self.at_last(many)) == 0)

    def checks(self) -> tuple[Check, ...]:
        """What must hold for documents that go either way."""
        held = [{self._key(c) for c in m.checks} - {None} for m in (self.few, self.many)]
        own = [c for c in self.few.checks if c.op != ">=" and (self._varies(c.left) or self._varies(c.right))]
        if held[0] != held[1] or own:
            raise Refused("not-generic", f"{_NOT_GENERIC}: they ask for different sizes")
        return tuple(Check(self.for_all(c.left), c.op, self.for_all(c.right), c.message) for c in self.many.checks)

    def _key(self, check: Check) -> Any:
        left, right = self.at_last(check.left), self.at_last(check.right)
        return None if compared(left, check.op, right) == sympy.true else (left, check.op, right)


def arms(first: Machine, second: Machine) -> Arms | None:
    """The two ways of the iterations' only branch; None if there is none, or another one."""
    branch = only_branch(first, second)
    if branch is None:
        return None
    condition, holds, fails = branch
    names = condition.free_symbols & first.names.own
    if len(names) != 1 or condition.free_symbols != names:
        return None
    (number,), asked = names, asked_of(condition)
    if asked is None:
        return None
    for sign in (1, -1):
        edge = sympy.expand(number - sign * asked[0])
        if edge.is_Integer and asked[1] == ">=":  # number >= edge, or number <= edge
            few, many, last = (fails, holds, edge - 1) if sign == 1 else (holds, fails, edge)
            return Arms(few, many, number, last, False)
        if edge.is_Integer:
            few, many = (holds, fails) if asked[1] == "==" else (fails, holds)
            return Arms(few, many, number, edge, True)
    return None


def _again(found: Any, change: Callable[[Any], Any]) -> Any:
    """An expression with its parts worked out anew: functions of ours see what they are given."""
    found = change(found)
    ours = (Quotient, Remainder)
    return sympy.expand(found.replace(lambda e: isinstance(e, ours), lambda e: e.func(*map(sympy.expand, e.args))))
