"""Expressions that hold the smaller or the larger of some numbers: when are they never negative?"""

from __future__ import annotations

import itertools

import pytest
import sympy

from packpass.semantics.not_negative import not_negative

n, m = sympy.symbols("n m", integer=True)
VALUES = {
    "larger": (sympy.Max(n, 4) - 4, True),
    "smaller": (sympy.Min(n, 4) - 4, False),
    "smaller of two known": (sympy.Min(n, m + 4), True),
    "one of two known": (sympy.Max(n - m, m), True),
    "taken away": (n - sympy.Min(n, m), True),
    "too much taken away": (n - sympy.Max(n, m), False),
    "two of them": (sympy.Max(n, m) - sympy.Min(n, m), True),
    "one inside another": (sympy.Max(0, n - sympy.Max(0, n - 4)), True),
    "a constant": (sympy.Integer(-1), False),
}


@pytest.mark.parametrize(("value", "certain"), VALUES.values(), ids=VALUES)
def test_cases(value: sympy.Expr, certain: bool) -> None:
    """``n`` and ``m``, and sums of them with positive numbers, are known not to be negative."""

    def known(number: sympy.Expr) -> bool:
        factors = [part.as_coeff_Mul()[0] for part in sympy.Add.make_args(number)]
        return min(factors) >= 0 and not number.has(sympy.Min, sympy.Max)

    found = not_negative(value, known)
    assert found is certain
    if found:
        points = itertools.product(range(8), range(8))
        assert all(value.subs({n: a, m: b}) >= 0 for a, b in points)
