"""Conditions on the lengths of documents, whatever their spelling: ``n == 0``, ``not n > 0``, ``4 * n < 1``."""

from __future__ import annotations

import dataclasses
from typing import Any

import sympy
import torch
from torch import fx

from packpass._compat import statically_known_true


@dataclasses.dataclass(frozen=True)
class Question:
    """``when`` it holds, ``sign * of`` is at least ``least``, which is not less than 1; a ``sign`` of 0: that of the
    two which makes it a length."""

    of: Any
    sign: int
    least: int
    when: bool

    def answered(self, outcome: bool, other: Question) -> bool | None:
        """The outcome of another question where this one has that outcome, and what both ask for is a length."""
        if self.of != other.of or (self.sign != other.sign and self.sign and other.sign):
            return None
        long = outcome is self.when
        if (long and other.least <= self.least) or (not long and other.least >= self.least):
            return other.when if long else not other.when
        return None

    def is_sure(self, outcome: bool, other: Question) -> bool:
        """Is the answer one for any number, and not for lengths alone?"""
        if self.sign == 0:
            return outcome is not self.when or other.sign == 0
        return other.sign != 0 or outcome is self.when


def question(condition: Any) -> Question | None:
    """A condition on one linear expression as a question for a length; None if it is another one."""
    if isinstance(condition, sympy.Not):
        inner = question(condition.args[0])
        return None if inner is None else dataclasses.replace(inner, when=not inner.when)
    if not isinstance(condition, sympy.core.relational.Relational):
        return None
    difference = sympy.expand(condition.lhs - condition.rhs)
    symbols = sorted(difference.free_symbols, key=str)
    if not symbols or not difference.is_polynomial(*symbols):
        return None
    polynomial = sympy.Poly(difference, *symbols)
    constant_term = difference.subs(dict.fromkeys(symbols, 0))
    factor, of = sympy.Poly(difference - constant_term, *symbols).primitive()
    of = of.as_expr()
    if polynomial.total_degree() != 1 or not constant_term.is_Integer or not factor.is_Integer:
        return None
    sign = 1
    if polynomial.LC() < 0:
        of, sign = -of, -1
    return _asked(condition, of, sign * int(factor), int(constant_term))


def _asked(condition: Any, of: Any, factor: int, number: int) -> Question | None:
    """The question whether ``factor * of + number`` is what the condition compares with 0."""
    if isinstance(condition, (sympy.Eq, sympy.Ne)):
        return Question(of, 0, 1, isinstance(condition, sympy.Ne)) if number == 0 else None
    for lower, strict in ((sympy.Ge, 0), (sympy.Gt, 1)):
        if isinstance(condition, lower):
            return _at_least(of, factor, strict - number, True)
    for upper, strict in ((sympy.Lt, 0), (sympy.Le, 1)):
        if isinstance(condition, upper):
            return _at_least(of, factor, strict - number, False)
    return None


def _at_least(of: Any, factor: int, limit: int, when: bool) -> Question:
    """Whether ``factor * of >= limit``."""
    sign, by = (1, factor) if factor > 0 else (-1, -factor)
    least = -(-limit // by)
    return Question(of, sign, least, when) if least >= 1 else Question(of, -sign, 1 - least, not when)


def without_slots(begin: fx.Node, condition: Any, outcome: bool) -> list[fx.Node]:
    """Numbers made behind ``begin`` that are 0, as a condition on them has that outcome: it says so, or that they are
    not above 0, and they are sizes."""
    asked = question(condition)
    if asked is None or asked.least != 1 or outcome is asked.when:
        return []
    found, node = [], begin
    while node.op != "root":
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymInt) and value.node.expr in (asked.of, -asked.of):
            found += [node] if asked.sign == 0 or statically_known_true(value >= 0) else []
        node = node.next
    return found
