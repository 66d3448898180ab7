"""The whole-row form of a roll of shards."""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any, ClassVar

from torch import fx

from packpass.semantics import example
from passes.cp_rolls import CP_ROLL
from passes.document_loops.terms import Term

if TYPE_CHECKING:
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
        cu = emitter.call(operator.mul, self.cu, self.place[1]) if self.sharded else self.cu
        if example(cu).device != emitter.device:
            cu = emitter.call("to", cu, emitter.device, method=True)
        row = emitter.node(self.of)
        if example(row).requires_grad and not self.differentiable:  # messages pass no gradient on
            row = emitter.call("detach", row, method=True)
        outs = emitter.call(
            CP_ROLL, [row], cu, [0], [self.shift], [self.dim], [0], [False], *self.place[:3],
            [self.fill], [self.wrap], self.place[3],
        )  # fmt: skip
        return emitter.call(operator.getitem, outs, 0)
