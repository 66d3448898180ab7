"""Operations without a rule, taken apart by torch: what they are made of is interpreted in their place.

Resizing a table of positions to the sizes of an image (``F.interpolate``) is arithmetic on coordinates and a few
lookups, an outer product is a product of two views: torch knows (`packpass.semantics.expand`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from packpass.semantics import example
from packpass.semantics.effects import open_autocasts
from packpass.semantics.expand import Pieces, expand, mark_gradients, requires_gradient, several
from passes.ragged_grids.asked import never_negative
from passes.ragged_grids.machine import Machine
from passes.ragged_grids.sizes import Reader, Unknown
from passes.ragged_grids.terms import Term
from passes.refused import Refused

log = logging.getLogger("packpass.ragged_grids")

Step = Callable[[Machine, fx.Node], None]


def taken_apart(machine: Machine, node: fx.Node, step: Step) -> bool:
    """Note the terms of what a call returns, as its pieces make them; False, and nothing noted, if that cannot be."""
    if node.target in machine.taken_apart or open_autocasts(node.graph, node):
        return False  # torch's definition leads back to the call, or the pieces would not run as the call does
    pieces = expand(node)
    if pieces is None or (requires_gradient(example(node)) and not pieces.composite):
        return False
    before = machine.state()
    machine.taken_apart.append(node.target)
    try:
        found = _run(machine, pieces, step)
        machine.size = before[-1]
        for term, fake in zip(found, several(example(node)), strict=True):
            _binds(machine, term, fake, node)
    except Refused as why:
        log.debug("%s: a piece is refused: %s", node, why)
        machine.restore(before)
        return False
    finally:
        machine.taken_apart.pop()
    machine.values[node] = tuple(found) if pieces.several else found[0]
    return True


def _run(machine: Machine, pieces: Pieces, step: Step) -> list[Term]:
    """Interpret the pieces. Their sizes have names of their own, which are given meanings by the operands."""
    outer, machine.size = machine.size, Reader(machine.names)
    inner = machine.size
    for placeholder, given in pieces.inputs:
        fake, value = example(placeholder), example(given)
        if isinstance(value, torch.Tensor):
            machine.size = outer
            term = machine.term(given, given)
            machine.size = inner
            machine.values[placeholder] = term
            pairs = list(zip(fake.shape, term.dims, strict=True))
        else:
            try:
                pairs = [(fake, outer(value))]
            except Unknown:
                raise Refused("host-read", "a number is read that is no size of a document", given) from None
            if not never_negative(machine, pairs[0][1]):
                # Torch takes numbers apart for sizes; as the bound of a slice, a negative one counts from the end.
                raise Refused("no-rule", "a number of a document may be negative", given)
        for new, known in pairs:
            # Names are of an environment of their own, and stand for nothing yet.
            if isinstance(new, torch.SymInt) and new.node.expr.is_Symbol and not inner.bind(new, known):
                raise Refused("length-mismatch", "two sizes of a document are taken to be the same", given)
    mark_gradients(pieces)
    for piece in pieces.nodes:
        machine.inside.add(piece)
        step(machine, piece)
    return [machine.term(result, result) for result in pieces.results]


def _binds(machine: Machine, term: Term, fake: Any, node: fx.Node) -> None:
    """The result has the sizes that the program counts with; those that Dynamo made up get their meaning."""
    for size, have in zip(fake.shape, term.dims, strict=True):
        known = isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and machine.size.bind(size, have)
        if not known and not machine.same(machine.expression(size, node), have):
            raise Refused("length-mismatch", "two sizes of a document are taken to be the same", node)
