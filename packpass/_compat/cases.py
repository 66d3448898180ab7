"""Sizes that only data knows, taken case by case."""

from __future__ import annotations

from typing import Any


def values_of(env: Any, number: Any) -> tuple[int, int] | None:
    """The two values that an expression of one size takes, which is data: what it is for nothing, and for anything.

    The difference of ``n`` and the size of ``torch.cat([x[1:], one])``, say, is 0, or -1 for none. None if there are
    more values.
    """
    import sympy

    symbols = list(number.free_symbols)
    if len(symbols) != 1 or not env.bound_sympy(symbols[0]).lower >= 0:
        return None
    known = {"Max": sympy.Max, "Min": sympy.Min}  # torch's own do not know of more than numbers
    for name, function in known.items():
        number = number.replace(lambda e, name=name: type(e).__name__ == name, lambda e, f=function: f(*e.args))
    more = sympy.Dummy(integer=True, nonnegative=True)
    values = [sympy.sympify(number.subs(symbols[0], value)) for value in (0, more + 1)]
    return (int(values[0]), int(values[1])) if all(value.is_Integer for value in values) else None
