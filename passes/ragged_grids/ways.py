"""Branches on numbers of the document, whose ways leave different tensors: each document's is taken from its way.

    if (h, w) == (32, 32):
        e = table
    else:
        e = resized(table, h, w)
    out.append(e if t == 1 else e.repeat(t, 1) + time[:t])

Capture has followed each way through the body in a traced iteration of its own. The documents of each way make a row of
their own, in which the others have no slots, so that nothing is computed for them; the row of all is picked from these
rows. Ways that leave the same are one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import sympy

from passes.ragged_grids.asked import asked_of, follows
from passes.ragged_grids.machine import Check, Machine
from passes.ragged_grids.sizes import coordinates
from passes.ragged_grids.terms import Input, Kept, Piece, Selected, Term, walk
from passes.refused import Refused


@dataclasses.dataclass(frozen=True)
class Ways:
    """``names[k]`` is 1 for documents that go the way of ``machines[k]``, 0 for all others."""

    machines: tuple[Machine, ...]
    names: tuple[Any, ...]

    def term(self, terms: Sequence[Term | None]) -> Term:
        """What documents leave; ``terms``: what each of `machines` leaves, None for nothing."""
        going: dict[Term, Any] = {}
        for term, name in zip(terms, self.names, strict=True):
            if term is not None:
                going[term] = sympy.expand(going.get(term, 0) + name)
        if not going:
            raise Refused("not-generic", "no way through the body leaves anything in a list")
        first, *others = going
        if going[first] == 1:
            return first
        for other in others:
            _may_stand_for(first, other)
        if any(isinstance(part, Kept) for part in walk(*going)):
            raise Refused("skip-condition", "a branch on sizes, one way of which selects slots, has no rule")
        dims = tuple(of_all(going, d) for d in range(len(first.dims)))
        read = self.machines[0].read
        parts = tuple(read(term, coordinates(term.dims)) for term in going)
        form = (dims, first.dtype, first.device, any(term.grad for term in going))
        return self.machines[0].intern(Selected(*form, parts, tuple(going.values())))

    def checks(self) -> tuple[Check, ...]:
        """What must hold for the documents that go each way."""
        going: dict[Check, Any] = {}
        for machine, name in zip(self.machines, self.names, strict=True):
            for check in machine.checks:
                going[check] = sympy.expand(going.get(check, 0) + name)
        return tuple(check if name == 1 else _where(name, check) for check, name in going.items())


def of_all(going: Mapping[Term, Any], d: int) -> Any:
    """The size of what documents leave along a dimension; where some leave nothing, and all others as much, that."""
    sizes = {term.dims[d] for term in going}
    return sizes.pop() if len(sizes) == 1 else length_of(going, d)


def length_of(going: Mapping[Term, Any], d: int) -> Any:
    """The same, with 0 for documents that leave nothing."""
    return sympy.expand(sum(name * term.dims[d] for term, name in going.items()))


def _where(going: Any, check: Check) -> Check:
    """A check of those documents alone for which ``going`` is 1; it is 0 for the others."""
    number = going * (check.left - check.right)
    if check.op == "!=":
        number += 1 - going
    return Check(sympy.expand(number), check.op, sympy.Integer(0), check.message)


def _may_stand_for(first: Term, other: Term) -> None:
    """May documents leave either of two terms? Raises `Refused`."""
    forms = [(term.dtype, term.device, len(term.dims)) for term in (first, other)]
    if forms[0] != forms[1]:
        raise Refused("not-generic", "two ways through the body leave tensors of different kinds")
    read = [{p.node for p in walk(term) if isinstance(p, (Input, Piece)) and p.grad} for term in (first, other)]
    if read[0] != read[1]:
        name = min(node.name for node in read[0] ^ read[1])
        reason = f"only one way at a branch uses {name}, which has no gradient in eager where no document goes that way"
        raise Refused("length-branch", reason)


def ways(machines: Sequence[Machine]) -> Ways | None:
    """The ways that the traced iterations have taken; None if they are not known, or do not depend on the document.
    Raises `Refused`."""
    if any(None in machine.branches for machine in machines):
        return None
    leaves = _leaves(list(machines), 0, [])
    own = machines[0].names.own
    if not any(holds.free_symbols & own for _, holds in leaves):
        return None
    names = [machines[0].names.condition(holds) for _, holds in leaves[:-1]]
    rest = sympy.Integer(1) - sympy.Add(*names)
    return Ways(tuple(machine for machine, _ in leaves), (*names, rest))


def _leaves(machines: list[Machine], depth: int, path: list[Any]) -> list[tuple[Machine, Any]]:
    """``(iteration, what holds for the documents that go its way)``, which together are all documents."""
    if any(len(machine.branches) == depth for machine in machines):
        if len(machines) > 1:
            raise Refused("not-generic", "two iterations of the loop go different ways without a branch")
        return [(machines[0], sympy.And(*path))]
    conditions = {machine.branches[depth][0] for machine in machines}
    if len(conditions) > 1:
        raise Refused("not-generic", "two iterations of the loop ask different questions")
    (condition,) = conditions
    found = []
    for outcome, holds in ((True, condition), (False, sympy.Not(condition))):
        taken = [machine for machine in machines if machine.branches[depth][1] is outcome]
        if holds == sympy.false:
            continue
        if taken:
            found += _leaves(taken, depth + 1, path if holds == sympy.true else [*path, holds])
        elif not _is_denied(holds, path, machines):
            reason = f"a branch on {condition} is taken to be answered by another, which is so for lengths alone"
            raise Refused("length-branch", reason)
    return found


def _is_denied(holds: Any, path: list[Any], machines: list[Machine]) -> bool:
    """Does something not hold for the documents of these iterations, by the branches so far or by what is checked?"""
    checked = [c for c in machines[0].checks if c.right == 0 and all(c in machine.checks for machine in machines)]
    known = [(check.left, check.op) for check in checked] + [asked_of(other) for other in path]
    opposite = sympy.Not(holds)
    return opposite in path or any(follows(asked_of(opposite), other) for other in known)
