"""`meaning_of`: the meaning of a call, from the entry of its operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import fx

from packpass.semantics import (
    creation,
    indexing,
    joins,
    kernels,
    lookups,
    losses,
    matrices,
    measures,
    pointwise,
    products,
    reductions,
    views,
    writes,
)
from packpass.semantics.call import Call, call_of
from packpass.semantics.meaning import Entry, How, Meaning, Scanned, Uniform, Uninitialised

FAMILIES: dict[str, Mapping[str, Entry]] = {
    module.FAMILY: module.ENTRIES
    for module in (
        pointwise,
        views,
        indexing,
        writes,
        joins,
        reductions,
        products,
        lookups,
        losses,
        creation,
        matrices,
        kernels,
        measures,
    )
}
ENTRIES: dict[str, Entry] = {}
for _family in FAMILIES.values():
    assert not ENTRIES.keys() & _family.keys(), ENTRIES.keys() & _family.keys()
    ENTRIES.update(_family)


def entry_of(op: str) -> Entry | None:
    """The entry of an operation: a hand-written one, or that of all pointwise ones."""
    found = ENTRIES.get(op)
    return pointwise.pointwise if found is None and pointwise.is_pointwise(op) else found


def meaning_of(call: Call | None) -> Meaning | None:
    """What a call means; None if that is not known: no call, no entry, or a form of the operation that it lacks."""
    if call is None:
        return None
    if "meaning" not in call.known:
        entry = entry_of(call.op)
        call.known["meaning"] = entry(call) if entry is not None else None
    found: Meaning | None = call.known["meaning"]
    return found


def contents_of(node: fx.Node) -> Any:
    """What a call makes without looking at any tensor: `Uniform`, `Iota`, `Uninitialised`; None if anything else."""
    meaning = meaning_of(call_of(node))
    return meaning.contents if meaning is not None else None


def blank(node: fx.Node) -> bool:
    """Does a call make new memory that holds one number everywhere, or nothing yet?"""
    return isinstance(contents_of(node), (Uniform, Uninitialised))


def keeps_order(node: fx.Node) -> bool:
    """Does a call hand on its first operand, slot by slot in row-major order: a copy, or a view of another shape?"""
    call = call_of(node)
    meaning = meaning_of(call)
    if call is None or meaning is None:
        return False
    return (call.op in pointwise.COPIES or meaning.family == views.FAMILY) and meaning.relations[0].in_order()


def family_of(node: fx.Node) -> str:
    """The family of what a node calls; "" without a meaning."""
    meaning = meaning_of(call_of(node))
    return meaning.family if meaning is not None else ""


def reorders(op: str) -> bool:
    """May the last bits of an operation depend on how many slots there are beside? So may those of an unknown one."""
    if op in reductions.REORDERING or op in losses.REORDERING:
        return True
    return family_of_name(op) in ("", products.FAMILY, matrices.FAMILY, kernels.FAMILY, measures.FAMILY)


def family_of_name(op: str) -> str:
    """The family of an operation, whatever it is called with."""
    found = next((family for family, entries in FAMILIES.items() if op in entries), "")
    return found or (pointwise.FAMILY if pointwise.is_pointwise(op) else "")


def reduces(node: fx.Node) -> bool:
    """Is it a sum or the like, of all slots or of those up to each?"""
    return family_of(node) == reductions.FAMILY


def scans(node: fx.Node) -> bool:
    """Does a slot of the result depend on all that come before it along some axis?"""
    meaning = meaning_of(call_of(node))
    relations = meaning.relations if meaning is not None else ()
    return any(isinstance(role, Scanned) for relation in relations for role in relation.roles.values())


def kept_axis(node: fx.Node, source: fx.Node, dim: int) -> int | None:
    """The axis of the result that axis ``dim`` of an operand is, slot by slot."""
    call = call_of(node)
    meaning = meaning_of(call)
    if call is None or meaning is None or call.several:
        return None
    operand = next((k for k, o in enumerate(call.operands) if o.node is source and o.argument not in call.unread), None)
    (relation,) = meaning.relations
    for loop, to, axes in relation.kept():
        if (operand, dim) in axes and loop not in relation.roles:
            return to
    return None


def ways(node: fx.Node) -> Iterator[tuple[fx.Node, How]]:
    """The operands of a call that has a meaning, with the ways in which their axes are read."""
    call = call_of(node)
    meaning = meaning_of(call)
    if call is None or meaning is None:
        return
    for relation in meaning.relations:
        for operand, axes in zip(call.operands, relation.operands, strict=True):
            yield from ((operand.node, axis.how) for axis in axes or ())
