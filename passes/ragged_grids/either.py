"""A branch on numbers of the document, whose two ways leave different tensors: each document's is taken from its way.

    if (h, w) == (32, 32):
        out.append(table)
    else:
        out.append(resized(table, h, w))

Capture has followed one way in each traced iteration. The documents of either way make a row of their own, in which the
others have no slots, and the row of all is picked from the two.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import sympy

from passes.ragged_grids.machine import Check, Machine, only_branch
from passes.ragged_grids.sizes import coordinates
from passes.ragged_grids.terms import Kept, Layer, Pooled, Reduced, Scanned, Selected, Term, walk
from passes.refused import Refused


@dataclasses.dataclass(frozen=True)
class Either:
    """``name`` is 1 for documents that go the way of ``holds``, 0 for those that go the way of ``fails``."""

    holds: Machine
    fails: Machine
    name: Any

    def term(self, terms: tuple[Term, Term]) -> Term:
        """What documents leave; ``terms``: what each of `holds` and `fails` leaves."""
        holds, fails = terms
        if holds is fails:
            return holds
        forms = [(t.dtype, t.device, len(t.dims)) for t in terms]
        if forms[0] != forms[1]:
            raise Refused("not-generic", "two ways through the body leave tensors of different kinds")
        if any(isinstance(part, (Kept, Layer, Pooled, Reduced, Scanned, Selected)) for part in walk(*terms)):
            reason = "a branch on sizes, one way of which puts slots of a document together, has no rule"
            raise Refused("skip-condition", reason)
        dims = tuple(self._of_all(a, b) for a, b in zip(holds.dims, fails.dims, strict=True))
        read = self.holds.read
        parts = (read(holds, coordinates(holds.dims)), read(fails, coordinates(fails.dims)))
        form = (dims, holds.dtype, holds.device, holds.grad or fails.grad)
        return self.holds.intern(Selected(*form, parts, self.name))

    def _of_all(self, holds: Any, fails: Any) -> Any:
        return sympy.expand(self.name * holds + (1 - self.name) * fails)

    def checks(self) -> tuple[Check, ...]:
        """What must hold for the documents that go either way."""
        both = [check for check in self.holds.checks if check in self.fails.checks]
        own = [
            _where(going, check)
            for machine, going in ((self.holds, self.name), (self.fails, 1 - self.name))
            for check in machine.checks
            if check not in both
        ]
        return (*both, *own)


def _where(going: Any, check: Check) -> Check:
    """A check of those documents alone for which ``going`` is 1; it is 0 for the others."""
    number = going * (check.left - check.right)
    if check.op == "!=":
        number += 1 - going
    return Check(sympy.expand(number), check.op, sympy.Integer(0), check.message)


def either(first: Machine, second: Machine) -> Either | None:
    """The two ways of the iterations' only branch; None if there is none, or another one."""
    branch = only_branch(first, second)
    if branch is None:
        return None
    condition, holds, fails = branch
    if not condition.free_symbols & first.names.own:
        return None
    return Either(holds, fails, first.names.condition(condition))
