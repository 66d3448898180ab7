"""What is certain about integers of a document whose length is not negative: ``len // 4 * 2 <= len``."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from fractions import Fraction

from passes.document_loops.integers import Affine, Atom, Bound, Boundaries, Derived, Index, Share, place

Linear = tuple[dict[Atom, Fraction], Fraction]


def length_in(value: Affine) -> Affine | None:
    """The one length of a document that a number is made of: two neighbouring boundaries, or an entry of lengths."""
    bounds = set(value.bounds())
    if len({bound.of for bound in bounds}) != 1 or len(bounds) > 2:
        return None
    first, *rest = sorted(bounds, key=lambda bound: bound.k)
    if not rest:
        return Affine.of(first)
    return Affine.of(rest[0]).plus(Affine.of(first), -1) if rest[0].k == first.k + 1 else None


def at_most(low: Affine, high: Affine, length: Affine) -> bool:
    """Is ``low <= high`` for every document of such a length? False if it is not certain."""
    rest = high.plus(low, -1)
    cases = _cases(rest)
    if cases is not None:
        return all(at_most(Affine(), case, length) for case in cases)
    return any(_not_negative(linear, length) for linear in _below(rest, length))


def _cases(value: Affine) -> list[Affine] | None:
    """Numbers of which none is negative, if one with the smaller (larger) of two in it is not; None for others."""
    for atom, count in value.atoms:
        if isinstance(atom, Derived) and atom.function is (min if count > 0 else max):
            others = Affine(value.atoms - {(atom, count)}, value.const)
            return [others.plus(arg.times(count)) for arg in atom.args]
    return None


def counts_from_the_start(value: Affine) -> bool:
    """Is a number not negative, where boundaries and lengths are not, and boundaries do not fall? Python counts a
    negative one from the end."""
    cases = _cases(value)
    if cases is not None:
        return all(map(counts_from_the_start, cases))
    for atoms, const in _below(value, Affine()):
        entries = sorted(((atom, count) for atom, count in atoms.items() if isinstance(atom, Bound)), key=_place)
        if const < 0 or any(not isinstance(atom, (Bound, Index)) and count for atom, count in atoms.items()):
            continue
        sums: dict[Boundaries, Fraction] = {}
        for bound, count in reversed(entries):
            sums[bound.of] = sums.get(bound.of, Fraction(0)) + count
            if sums[bound.of] < 0:
                break
        else:
            if all(count >= 0 for atom, count in atoms.items() if isinstance(atom, Index)):
                return True
    return False


def never_negative(value: Affine) -> bool:
    """Is a number not negative, whatever the numbers of the program are that it is made of?"""

    def certain(atom: Atom) -> bool:
        if not isinstance(atom, Derived):
            return isinstance(atom, Index)
        parts = map(never_negative, atom.args)
        return atom.function in (place, operator.mod) or (any if atom.function is max else all)(parts)

    return value.const >= 0 and all(count > 0 and certain(atom) for atom, count in value.atoms)


def without_slots(value: Affine) -> int | None:
    """What a number made of one vector of boundaries is where a document ends where it begins; None if not certain."""
    total, ends = value.const, 0
    for atom, count in value.atoms:
        if isinstance(atom, Bound):
            ends += count
        elif isinstance(atom, Derived) and atom.function in (operator.floordiv, operator.mod, min, max, place):
            args = [without_slots(arg) for arg in atom.args]
            if None in args:
                return None
            total += count * atom.function(*args)
        elif not isinstance(atom, Derived) or not isinstance(atom.function, Share) or without_slots(atom.args[0]) != 0:
            return None
    return None if ends else total


def _place(entry: tuple[Bound, Fraction]) -> int:
    return entry[0].k


def _not_negative(linear: Linear, length: Affine) -> bool:
    """Is this a part of the length, and a constant, that are not negative?"""
    atoms, const = linear
    share: Fraction | None = None
    for atom, count in length.atoms:
        part = atoms.get(atom, Fraction(0)) / count
        if share is not None and part != share:
            return False
        share = part
    others = [atom for atom, count in atoms.items() if count and not any(atom == known for known, _ in length.atoms)]
    if others or (share or 0) < 0:
        return False
    # What is bounded is an integer.
    return const - (share or 0) * length.const > -1


def _below(value: Affine, length: Affine) -> Iterator[Linear]:
    """Linear expressions without quotients that are at most ``value``."""
    linear: list[tuple[Atom, Fraction]] = []
    choices: list[list[Linear]] = []
    for atom, count in value.atoms:
        if isinstance(atom, Derived):
            choices.append(list(_of_derived(atom, Fraction(count), length)))
        else:
            linear.append((atom, Fraction(count)))
    for chosen in itertools.product(*choices):
        atoms, const = dict(linear), Fraction(value.const)
        for more, number in chosen:
            const += number
            for other, share in more.items():
                atoms[other] = atoms.get(other, Fraction(0)) + share
        yield atoms, const


def _of_derived(atom: Derived, count: Fraction, length: Affine) -> Iterator[Linear]:
    """Linear expressions that are at most ``count`` times the number."""
    first, *rest = atom.args
    if atom.function in (operator.floordiv, operator.mod):
        by = rest[0].const
        if atom.function is operator.mod:
            yield {}, count * (by - 1) if count < 0 else Fraction(0)
            return
        if count < 0:
            yield from (_scaled(linear, count / by) for linear in _above(first, length))
            return
        for atoms, const in _below(first, length):
            yield _scaled((atoms, const - (by - 1)), count / by)
        if at_most(Affine(), first, length) or counts_from_the_start(first):
            yield {}, Fraction(0)
        return
    if isinstance(atom.function, Share):
        if at_most(Affine(), first, length) or counts_from_the_start(first):
            if count > 0:
                yield {}, Fraction(0)
            elif atom.function.shrinks:
                yield from (_scaled(linear, count) for linear in _above(first, length))
        return
    if atom.function is place:
        if count < 0:
            yield from (_scaled(linear, count) for linear in _above(rest[0], length))
        else:
            yield {}, Fraction(0)
        return
    if atom.function in (min, max) and (atom.function is min) == (count < 0):
        for arg in atom.args:
            side = _above(arg, length) if count < 0 else _below(arg, length)
            yield from (_scaled(linear, count) for linear in side)


def _above(value: Affine, length: Affine) -> Iterator[Linear]:
    """Linear expressions that are at least ``value``."""
    yield from (_scaled(linear, Fraction(-1)) for linear in _below(value.times(-1), length))


def _scaled(linear: Linear, by: Fraction) -> Linear:
    atoms, const = linear
    return {atom: count * by for atom, count in atoms.items()}, const * by
