"""What branches and checks ask of a document's sizes: how a number compares with 0, and what follows from that."""

from __future__ import annotations

import functools
from typing import Any

import sympy
from torch import fx

from packpass.semantics import example
from packpass.semantics.not_negative import not_negative
from passes.ragged_grids.machine import Machine
from passes.ragged_grids.sizes import coordinates
from passes.refused import Refused


def asked_of(holds: Any) -> tuple[Any, str] | None:
    """``(number, op)`` if it is asked how a number compares with 0."""
    if isinstance(holds, (sympy.Eq, sympy.Ne)):
        return sympy.expand(holds.lhs - holds.rhs), "==" if isinstance(holds, sympy.Eq) else "!="
    if isinstance(holds, (sympy.Ge, sympy.Gt, sympy.Le, sympy.Lt)):
        strict = 1 if isinstance(holds, (sympy.Gt, sympy.Lt)) else 0
        return sympy.expand(holds.gts - holds.lts - strict), ">="
    return None


def follows(asked: tuple[Any, str] | None, known: tuple[Any, str] | None) -> bool:
    """Does a number compare so with 0 where another one is known to compare so?"""
    if asked is None or known is None:
        return False
    for sign in (1, -1):
        spare = sympy.expand(asked[0] - sign * known[0])  # asked[0] is sign * known[0] + spare
        if not spare.is_Integer:
            continue
        if known[1] == "==" and {"==": spare == 0, ">=": spare >= 0, "!=": spare != 0}[asked[1]]:
            return True
        if known[1] == "!=" and asked[1] == "!=" and spare == 0:
            return True
        if known[1] == ">=" and {">=": sign == 1 and spare >= 0, "!=": sign * spare > 0, "==": False}[asked[1]]:
            return True
    return False


def never_negative(machine: Machine, number: Any) -> bool:
    """Is a number at least 0 for every document that gets here, by what it is made of, by what is checked of it (a
    document's slots are between two boundaries), or by the branches so far?"""
    number = sympy.expand(number)
    if all(part.as_coeff_Mul()[0] >= 0 for part in sympy.Add.make_args(number)):
        return True
    checked = (sympy.expand(known.left - known.right) for known in machine.checks if known.op == ">=")
    return number in checked or said_to_be(machine, number)


def may_be_checked(machine: Machine, number: Any) -> bool:
    """Is a number at least 0, or taken to be, so that a check may say so? Where it fails, the call runs document by
    document; but not where documents go different ways, which must say it themselves."""
    if not number.free_symbols & machine.names.own or not machine.branches:
        return never_negative(machine, number)
    return said_to_be(machine, number)


def as_wide(machine: Machine, node: fx.Node) -> None:
    """`markers.AS_WIDE`: a dimension has the width that it is taken to have, as the branches so far say."""
    source, dim, width = node.args
    assert isinstance(source, fx.Node) and isinstance(dim, int)
    term, fake, wide = machine.term(source, node), example(node), machine.expression(width, node)
    spare = wide - term.dims[dim]
    if not all(not_negative(number, functools.partial(said_to_be, machine)) for number in (spare, -spare)):
        reason = "documents that are not padded may be longer than the others are padded to"
        raise Refused("list-use", reason, node)
    form = ((*term.dims[:dim], wide, *term.dims[dim + 1 :]), fake.dtype, fake.device, fake.requires_grad)
    machine.keep(node, machine.moved(form, machine.read(term, coordinates(form[0]))))


def said_to_be(machine: Machine, number: Any) -> bool:
    """Do the branches so far say that a number is at least 0?"""
    asked = (sympy.expand(number), ">=")
    ways = [sympy.sympify(holds if outcome else sympy.Not(holds)) for holds, outcome in filter(None, machine.branches)]
    return any(follows(asked, asked_of(way)) for way in ways)
