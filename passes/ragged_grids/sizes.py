"""Integers of one document as expressions: its numbers, products and quotients of them, coordinates within its tensors.

Everything is sympy, as the sizes that Dynamo made up are. The numbers that a traced iteration read (``u3``) become the
columns that they were read from, so that the two iterations speak of the same numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import BooleanFunction
from torch import fx

from packpass._compat import free_unbacked_symbols

DOCUMENT = sympy.Symbol("document", integer=True)
"""Number of the document."""
SLOT = sympy.Symbol("slot", integer=True)
"""Number of a slot of what the document appends, along the dimension in which the list is concatenated."""


LAST = sympy.Symbol("last", integer=True)
"""The last entry of a list of numbers, before the document adds its own."""


class Coordinate(sympy.Function):
    """``Coordinate(d, size)``: where something is along dimension d of a tensor, ``0 <= it < size``."""

    is_integer = True


class Free(sympy.Function):
    """``Free(d, size)``: every place along a dimension that all documents share."""

    is_integer = True


class Looked(sympy.Function):
    """``Looked(name, size)``: what a tensor of integers holds, ``0 <= it < size``."""

    is_integer = True


class Quotient(sympy.Function):
    """``a // b``, as Python has it."""

    is_integer = True

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        if a.is_Integer and b.is_Integer and b != 0:
            return sympy.Integer(int(a) // int(b))
        whole, rest = _divided(a, b)
        if rest == 0 or below(rest, b):
            return whole
        return whole + cls(rest, b) if whole != 0 else None


class Remainder(sympy.Function):
    """``a % b``, as Python has it."""

    is_integer = True

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        if a.is_Integer and b.is_Integer and b != 0:
            return sympy.Integer(int(a) % int(b))
        whole, rest = _divided(a, b)
        if rest == 0:
            return sympy.Integer(0)
        if below(rest, b):
            return rest
        return cls(rest, b) if whole != 0 else None


class Ratio(sympy.Function):
    """``a / b`` of two integers, as Python has it: a float."""

    is_real = True


class Scaled(sympy.Function):
    """``a * b`` of a float and an integer, which nothing takes apart."""

    is_real = True


class Power(sympy.Function):
    """``a ** b`` of floats."""

    is_real = True


class Truncated(sympy.Function):
    """``int(a)`` of a float."""

    is_integer = True


def _divided(a: Any, b: Any) -> tuple[Any, Any]:
    """``(q, r)`` with ``a == q * b + r``, as much in q as can be seen."""
    whole: list[Any] = []
    rest: list[Any] = []
    for part in sympy.Add.make_args(sympy.expand(a)):
        quotient = part / b
        exact = b != 0 and quotient.as_numer_denom()[1] == 1
        (whole if exact else rest).append(quotient if exact else part)
    return sympy.Add(*whole), sympy.Add(*rest)


_BOUNDED = (Coordinate, Free, Looked)
"""What lies between 0 and its second argument."""


def below(a: Any, b: Any) -> bool:
    """Is ``0 <= a < b`` where the coordinates in ``a`` are within their tensors? (All sizes are at least 1 there.)"""
    parts = sympy.Add.make_args(sympy.expand(a))
    if not all(_is_stride(part) for part in parts):
        return False
    most = a.replace(lambda e: isinstance(e, _BOUNDED), lambda e: e.args[1] - 1)
    spare = sympy.expand(b - 1 - most)
    return bool(spare.is_Integer and spare >= 0)


def _is_stride(part: Any) -> bool:
    """A coordinate times sizes."""
    coordinates = [f for f in sympy.Mul.make_args(part) if isinstance(f, _BOUNDED)]
    factor = part / coordinates[0] if len(coordinates) == 1 else None
    return factor is not None and not factor.has(*_BOUNDED) and factor.as_coeff_Mul()[0] > 0


def multiples(number: Any) -> Any:
    """The same number, where what is left of one without its remainder is a multiple: ``a - a % b`` is ``a // b * b``.
    What is padded up to a multiple, or cut down to one, is then seen to be one."""
    for rest in sorted(number.atoms(Remainder), key=str) if number.is_Add else ():
        a, b = rest.args
        weight = number.coeff(rest)
        joined = sympy.expand(number - weight * rest + weight * (a - Quotient(a, b) * b))
        if len(sympy.Add.make_args(joined)) < len(number.args):
            return multiples(joined)
    return number


def product(sizes: Iterable[Any]) -> Any:
    return sympy.expand(sympy.Mul(*sizes))


@dataclasses.dataclass(frozen=True)
class Column:
    """A number of every document: a column of a matrix (``column`` is None for a vector), that of the first document
    ``ahead`` of where it begins."""

    node: fx.Node
    column: int | None
    ahead: int = 0


class Names:
    """The names of a loop's integers, the same in both traced iterations."""

    def __init__(self, given: dict[Any, fx.Node] | None = None) -> None:
        self.given = given or {}
        """Numbers that only the data says, and that are there before the loop, by their name."""
        self.columns: dict[Any, Column] = {}
        self._symbols: dict[Column, Any] = {}
        self.outer: set[Any] = set()
        """Sizes from outside the loop that its expressions hold."""
        self.kept: dict[Any, Any] = {}
        """Number of slots of a document at which a condition holds -> the condition, a term of one dimension."""
        self.ways: dict[Any, Any] = {}
        """1 for documents that go one way at a branch, 0 for others -> what holds for the former."""

    def column(self, node: fx.Node, column: int | None, ahead: int = 0) -> Any:
        key = Column(node, column, ahead)
        if key not in self._symbols:
            at = ("" if column is None else f".{column}") + (f"+{ahead}" if ahead else "")
            symbol = self._symbols[key] = sympy.Symbol(f"{node.name}{at}", integer=True)
            self.columns[symbol] = key
        return self._symbols[key]

    def count(self, mask: Any) -> Any:
        """The number of a document's slots at which a condition holds."""
        for symbol, known in self.kept.items():
            if known is mask:
                return symbol
        symbol = sympy.Symbol(f"kept_{len(self.kept)}", integer=True)
        self.kept[symbol] = mask
        return symbol

    def condition(self, holds: Any) -> Any:
        """1 for documents of which something holds, 0 for others."""
        symbol = sympy.Symbol(f"way_{len(self.ways)}", integer=True)
        self.ways[symbol] = holds
        return symbol

    @property
    def own(self) -> set[Any]:
        """What is another number for every document."""
        return {DOCUMENT, LAST, *self.columns, *self.kept, *self.ways}


class Unknown(Exception):
    """An integer of a traced iteration that was made from data; the symbol is ``args[0]``."""


class Reader:
    """Reads sizes of one traced iteration."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.known: dict[Any, Any] = {}
        """Symbol that Dynamo made up -> what it is."""

    def __call__(self, value: Any) -> Any:
        """The expression of an integer; raises `Unknown`."""
        if isinstance(value, (torch.SymInt, torch.SymBool)):
            return self.expression(value.node.expr)
        return sympy.sympify(value)

    def expression(self, found: Any) -> Any:
        found = self.real(found)
        return found if isinstance(found, BooleanFunction) else multiples(sympy.expand(found))

    def real(self, found: Any) -> Any:
        """The expression of a float, whose parts are left in their order; raises `Unknown`."""
        found = _in_our_words(found)
        for symbol in found.free_symbols - self.known.keys():
            if free_unbacked_symbols(symbol) and symbol not in self.names.given:
                raise Unknown(symbol)
            self.known[symbol] = symbol
            self.names.outer.add(symbol)
        return found.xreplace({s: self.known[s] for s in found.free_symbols})

    def is_new(self, value: Any) -> bool:
        """Is this a number that Dynamo made up, of which nothing is known yet?"""
        symbol = value.node.expr if isinstance(value, torch.SymInt) else None
        return (
            symbol is not None and symbol.is_Symbol and symbol not in self.known and bool(free_unbacked_symbols(symbol))
        )

    def bind(self, value: Any, meaning: Any) -> bool:
        """Note what a number of the iteration is; False if that is already something else."""
        if not isinstance(value, torch.SymInt):
            return bool(sympy.sympify(value) == meaning)
        symbol = value.node.expr
        if symbol.is_number:  # which one that was made up may have become
            return bool(symbol == meaning)
        if not symbol.is_Symbol:
            return False
        return bool(self.known.setdefault(symbol, meaning) == meaning)


_WORDS = {
    **{"FloorDiv": Quotient, "CleanDiv": Quotient, "Mod": Remainder, "PythonMod": Remainder},
    **{"Max": sympy.Max, "Min": sympy.Min},
    **{"IntTrueDiv": Ratio, "FloatTrueDiv": Ratio, "ToFloat": lambda number: number},
    **{"FloatPow": Power, "TruncToInt": Truncated},
}


def _in_our_words(found: Any) -> Any:
    if not found.args:
        return found
    args = [_in_our_words(part) for part in found.args]
    if found.is_Mul and len(args) == 2 and args[0].is_Float and args[1].is_Symbol:
        return Scaled(*args)
    ours = _WORDS.get(type(found).__name__)
    return ours(*args) if ours is not None else found.func(*args)


def is_float(number: Any) -> bool:
    """Does Python compute a number in floating point? What is made an integer of it does no more."""
    if number.is_Float or number.func in (Ratio, Scaled, Power):
        return True
    return number.func is not Truncated and any(map(is_float, number.args))


def factored(number: Any) -> Any:
    """A sum as a product, if that takes fewer operations."""
    if not number.is_Add or len(number.args) < 3 or is_float(number):
        return number
    shorter = sympy.factor(number)
    return shorter if shorter.count_ops() < number.count_ops() else number


# === Coordinates =============================================================================================


def coordinates(dims: Sequence[Any]) -> tuple[Any, ...]:
    """The coordinates of a tensor of these dimensions."""
    return tuple(Coordinate(d, size) for d, size in enumerate(dims))


def placed(found: Any, dims: Sequence[Any], at: Sequence[Any]) -> Any:
    """An expression of the coordinates of a tensor of these dimensions, where these are known."""
    return found.xreplace(dict(zip(coordinates(dims), at, strict=True)))


def flat(at: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """The number of a place in row-major order."""
    out: Any = sympy.Integer(0)
    for where, size in zip(at, sizes, strict=True):
        out = out * size + where
    return sympy.expand(out)


def unflat(number: Any, sizes: Sequence[Any]) -> list[Any]:
    """The place with that number in row-major order."""
    if len(sizes) == 1:
        return [number]
    out = []
    for d in range(len(sizes)):
        behind = product(sizes[d + 1 :])
        at = Quotient(number, behind)
        out.append(Remainder(at, sizes[d]) if d else at)
    return out


def rejoined(number: Any) -> Any:
    """The same number, where a quotient and the remainder beside it are what was divided: ``a // b * b + a % b``."""
    for rest in number.atoms(Remainder):
        a, b = rest.args
        wholes = [Quotient(a, b)]
        if a.func is Quotient:  # a // b // c is a // (b * c)
            wholes.append(Quotient(a.args[0], sympy.expand(a.args[1] * b)))
        factor = number.coeff(rest)
        for whole in wholes if factor != 0 else ():
            joined = sympy.expand(number - factor * (whole * b + rest) + factor * a)
            if not joined.has(rest) and not joined.has(whole):
                return rejoined(joined)
    return number


def regrouped(before: Sequence[Any], after: Sequence[Any], same: Callable[[Any, Any], bool]) -> tuple[Any, ...]:
    """For every dimension before a reshape, its coordinate in terms of those after it; ``same``: are sizes equal?"""
    places = coordinates(after)
    left, right = list(range(len(before))), list(range(len(after)))
    out: list[Any] = [sympy.Integer(0)] * len(before)
    while left:
        runs = ((a + b, a, b) for a in range(1, len(left) + 1) for b in range(1, len(right) + 1))
        for _, a, b in sorted(runs):
            sizes = [before[d] for d in left[-a:]], [after[j] for j in right[-b:]]
            if (a == len(left) and b == len(right)) or same(product(sizes[0]), product(sizes[1])):
                number = flat([places[j] for j in right[-b:]], sizes[1])
                for d, at in zip(left[-a:], unflat(number, sizes[0]), strict=True):
                    out[d] = at
                left, right = left[:-a], right[:-b]
                break
        else:
            break  # what is left has one slot
    return tuple(out)


def whole(size: Any) -> tuple[Any, tuple[Any, ...]]:
    """A size where quotients that are multiplied by their divisor are the number itself: ``(h // m) * m`` is ``h``; and
    these quotients."""
    taken: list[Any] = []
    while True:
        factors = sympy.Mul.make_args(size)
        for factor in [f.base if f.is_Pow else f for f in factors]:
            rest = size / factor / factor.args[1] if isinstance(factor, Quotient) else None
            if rest is not None and rest.as_numer_denom()[1] == 1:
                taken.append(factor)
                size = sympy.expand(rest * factor.args[0])
                break
        else:
            return size, tuple(taken)
