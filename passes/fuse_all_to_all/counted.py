"""The boundaries and lengths that a loop with exchanges cuts documents by."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import fx

from packpass import markers
from packpass.layout.sources import SAME_BOUNDARIES
from packpass.semantics import example, op_name
from packpass.semantics.effects import mutated_after
from packpass.semantics.memory import copied
from packpass.semantics.pointwise import whole_divisor
from passes.document_loops.boundaries import boundary_vector
from passes.document_loops.integers import Affine, Bound, Boundaries, Index
from passes.document_loops.machine import Machine
from passes.document_loops.op_names import is_size_check
from passes.document_loops.step import step
from passes.document_loops.terms import Interner
from passes.fuse_all_to_all.scalars import Counted
from passes.loops import LoopFound
from passes.refused import Refused


def integers(loop: LoopFound, which: int) -> Machine:
    """The abstract machine after one iteration, for the integers it knows."""
    begin, body, _ = loop.iterations[which]
    machine = Machine(Interner(), loop.nodes, {})
    machine.values[begin] = Affine.of(Index())
    for node in body:
        fake = example(node)
        if isinstance(fake, torch.Tensor) and (fake.dim() > 1 or fake.is_floating_point()):
            continue
        try:
            step(machine, node)
        except Refused:
            continue
    return machine


def boundaries_of(machine: Machine, loop: LoopFound) -> tuple[fx.Node, bool, dict[Boundaries, Counted]]:
    """The one vector that all boundaries in use come from, whether it holds lengths, and each in terms of it."""
    used: dict[Boundaries, set[int]] = {}
    for number, value in machine.values.items():
        if all(only_checked(user) for user in number.users):
            continue  # such as a length that became the difference of two boundaries (`packpass.capture.offsets`)
        for atom, _ in value.atoms if isinstance(value, Affine) else ():
            if isinstance(atom, Bound):
                used.setdefault(atom.of, set()).add(atom.k)
    counted: dict[Boundaries, Counted] = {}
    bases = []
    for node in loop.iterations[0][1]:
        if node.target in (markers.SEGMENT, markers.SPLIT_GET) and isinstance(node.args[1], fx.Node):
            used.setdefault(Boundaries(node.args[1], node.target is markers.SPLIT_GET), set())
    for boundaries, ks in used.items():
        node, made = _counted_by(boundaries.node, loop.iterations[-1][2])
        if (boundaries.lengths and ks) or not {k + made.offset for k in ks} <= {0, 1}:
            raise Refused("not-a-segment", "the loop uses boundaries of more than the document it is at")
        bases.append((node, boundaries.lengths))
        counted[boundaries] = made
    if len(set(bases)) != 1:
        raise Refused("two-boundaries" if bases else "no-segments", "the loop is not cut by one vector of boundaries")
    return *bases[0], counted


def _counted_by(node: fx.Node, end: fx.Node) -> tuple[fx.Node, Counted]:
    """``cu // cp`` is ``cu`` times 1 / cp, and so is ``cu[1:] // cp`` from its second element on, unless one of the two
    is written before the loop's end."""
    factor, offset = Fraction(1), 0
    while True:
        source = node.args[0] if node.args else None
        fake = example(source)
        if not isinstance(source, fx.Node) or not isinstance(fake, torch.Tensor) or fake.is_floating_point():
            return node, Counted(factor, offset)
        if any(mutated_after(node.graph, n, node, end) for n in (node, source)):
            return node, Counted(factor, offset)
        by = node.args[1] if len(node.args) > 1 else None
        divisor = whole_divisor(node, by)
        if divisor is not None:
            factor /= divisor
        elif op_name(node) in SAME_BOUNDARIES:
            pass  # and the exchange checks that boundaries are within the row
        elif copied(node) is source:
            if example(node).dtype not in (torch.int32, torch.int64) or fake.dtype not in (torch.int32, torch.int64):
                return node, Counted(factor, offset)
        else:
            root, behind, _ = boundary_vector(node)
            if root is node or mutated_after(node.graph, root, node, end):
                return node, Counted(factor, offset)
            source, offset = root, offset + behind
        node = source


def only_checked(node: fx.Node) -> bool:
    """Integers that only Dynamo's own assertions look at."""
    if is_size_check(node):
        return True
    return isinstance(example(node), (torch.SymInt, torch.SymBool, int)) and all(only_checked(u) for u in node.users)
