"""The whole-row form of a roll of shards."""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any, ClassVar

from torch import fx

from packpass.semantics import example
from passes.cp_rolls import CP_ROLL
from passes.document_loops.terms import Row, Term
from passes.fuse_boundary_exchange.canonical import Field, Group
from passes.fuse_boundary_exchange.values import Form

if TYPE_CHECKING:
    from passes.building import Builder
    from passes.document_loops.emit import Emitter


@dataclasses.dataclass(frozen=True, eq=False)
class ShardsRoll(Term):
    """``of``, which a group holds in shards, with every document rolled by ``shift``.

    ``cu`` are the boundaries of the whole row (``sharded``: of this rank's row). ``fill`` and ``wrap`` say what comes
    in at the ends of documents, and only mean something on a rank that holds them. ``place`` is the group, its size,
    this process's rank in it, and whether shards are zigzags.
    """

    of: Term
    cu: fx.Node
    sharded: bool
    shift: int
    fill: Any
    wrap: bool
    place: tuple[str, int, int, bool]
    dim: int
    differentiable: bool = False

    keeps_tail: ClassVar[bool] = True

    def emit(self, emitter: Emitter) -> fx.Node:
        return self.of_row(emitter, emitter.node(self.of))

    def of_row(self, build: Emitter | Builder, row: fx.Node) -> fx.Node:
        """The exchange, of the node that ``of`` is."""
        cu = build.call(operator.mul, self.cu, self.place[1]) if self.sharded else self.cu
        if example(cu).device != example(row).device:
            cu = build.call("to", cu, example(row).device, method=True)
        if example(row).requires_grad and not self.differentiable:  # messages pass no gradient on
            row = build.call("detach", row, method=True)
        outs = build.call(
            CP_ROLL, [row], cu, [0], [self.shift], [self.dim], [0], [False], *self.place[:3],
            [self.fill], [self.wrap], self.place[3],
        )  # fmt: skip
        return build.call(operator.getitem, outs, 0)


def roll_of(field: Field, cu: fx.Node, sharded: bool, group: Group, form: Form) -> ShardsRoll:
    """The roll of a field by a group that holds shards of this form."""
    row = Row(field.node, (), field.dim)
    fill = 0 if field.fill is None else field.fill.value
    place = (group.name, group.size, group.rank, form.chunks == 2)
    return ShardsRoll(row, cu, sharded, field.shift, fill, field.fill is None, place, field.dim, field.differentiable)
