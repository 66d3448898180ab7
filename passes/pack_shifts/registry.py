"""Rules for the calls that move, cut, join, choose or overwrite slots, by the call's name or by what it means.

A rule is ``rule(interpreter, node) -> View | Uniform | True | None``: the value of the node, True if the call was
understood but has no value of interest, None if it is to be taken for a call like any other (a use of its inputs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import fx

from packpass._registry import registrar
from packpass.semantics import call_of, contents_of, family_of, op_name
from packpass.semantics.memory import copied
from packpass.semantics.pointwise import COMPARISONS, COPIES, LINEAR, ON_POSITIONS
from packpass.semantics.registry import FAMILIES

Rule = Callable[[Any, fx.Node], Any]
STRUCTURAL: dict[str, Rule] = {}


rule = registrar(STRUCTURAL)
"""Registers a rule under plain op names, or under what calls have in common (see `rule_of`)."""


def rule_of(node: fx.Node) -> Rule | None:
    """The rule of a call; of one that writes what it makes to ``out=``, the rule for these."""
    return STRUCTURAL["out"] if isinstance(node.kwargs.get("out"), fx.Node) else rule_of_result(node)


def rule_of_result(node: fx.Node) -> Rule | None:
    """The rule for what a call makes: that of its name, else one for all that fill memory, copy, show the same slots,
    look slots up, compare, add, or compute with whole numbers."""
    name = op_name(node)
    if name in STRUCTURAL or not name:
        return STRUCTURAL.get(name)
    if contents_of(node) is not None:
        return STRUCTURAL["filled"]
    if copied(node) is not None:
        return STRUCTURAL["copies"]
    if family_of(node) in ("views", "lookups"):
        return STRUCTURAL[family_of(node)]
    if name in COMPARISONS:
        return STRUCTURAL["comparisons"]
    call = call_of(node)
    if call is not None and call.op in LINEAR and not call.in_place:
        return STRUCTURAL["sums"]
    return STRUCTURAL["numbers"] if name in ON_POSITIONS else None


def operations() -> frozenset[str]:
    """The operations that are followed slot by slot, on the way from a row to its shift; for people."""
    common: dict[str, Iterable[str]] = {
        **{"views": FAMILIES["views"], "lookups": FAMILIES["lookups"], "filled": FAMILIES["creation"]},
        **{"copies": COPIES, "comparisons": COMPARISONS, "sums": LINEAR, "numbers": ON_POSITIONS, "out": ()},
    }
    return (frozenset(STRUCTURAL) - common.keys()).union(*common.values())
