"""What is measured on the ranks: of every program the naive and the hand-fused form, packpass's ops, and the floor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from packpass import ops
from perf.cp import by_hand, naive

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Setup:
    """One program at one size. ``sections`` are widths per rank of the group (times cp: of the whole)."""

    program: str
    cp: int
    documents: int
    dtype: str = "float32"
    total: int = 8192
    features: int = 800
    backward: bool = True

    @property
    def sections(self) -> list[int]:
        """Six sections as of a gated delta net: q, k, v, gate, and two thin ones; they divide among 8 ranks."""
        return [self.features * part // 100 for part in (16, 16, 32, 32, 2, 2)]

    @property
    def local(self) -> int:
        return self.total // self.cp


class Ways(NamedTuple):
    """Functions of the same arguments and results."""

    naive: Function
    by_hand: Function
    ops: Function


class Inputs(NamedTuple):
    """Arguments, and what gradients are taken of (nothing: the program is measured forward only)."""

    arguments: tuple[Any, ...]
    wanted: tuple[Tensor, ...]


def documents(setup: Setup) -> Tensor:
    """``cu_seqlens`` int32 of documents of unequal lengths that fill the row; chunks hold at least 4 tokens."""
    unit = 2 * setup.cp
    generator = torch.Generator().manual_seed(setup.documents)
    free = setup.total // unit - 4 * setup.documents
    if free < 0:
        raise ValueError(f"{setup.documents} documents do not fit in {setup.total} slots with {setup.cp} ranks")
    cuts = torch.randint(0, free + 1, (setup.documents - 1,), generator=generator).sort().values
    edges = torch.cat([torch.zeros(1, dtype=torch.int64), cuts, torch.tensor([free])])
    lengths = edges.diff() + 4
    return torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).mul(unit).to(torch.int32)


def ways_of(setup: Setup, group: Any) -> Ways:
    """The program's forms with everything bound but the tensors. They do not depend on the number of documents."""
    if setup.program in ("cp_to_hp", "hp_to_cp", "round_trip"):
        forms = [getattr(module, setup.program) for module in (naive, by_hand)]
        own = ops_round_trip if setup.program == "round_trip" else getattr(ops, setup.program)
        return Ways(*(_with_sections(form, group, setup.sections) for form in (*forms, own)))
    if setup.program in ROLLS:
        _, depths = ROLLS[setup.program]
        return Ways(*(_with_depths(form, group, depths) for form in (naive.roll_depths, by_hand.roll_depths, ops_roll)))
    if setup.program == "layer":
        from perf.cp.layer import layer_ways

        return layer_ways(setup.cp, group)
    raise ValueError(f"no program {setup.program!r}")


def inputs_of(setup: Setup, group: Any) -> Inputs:
    """This rank's tensors."""
    rank = dist.get_rank(group)
    generator = torch.Generator().manual_seed(1000 + rank)
    cu = documents(setup)
    if setup.program in ROLLS:
        fields, _ = ROLLS[setup.program]
        rows = [torch.randint(1, 50_000, (1, setup.local), generator=generator) for _ in range(fields)]
        return Inputs((rows, cu), ())
    shape = (setup.local, setup.features)
    trained: tuple[Tensor, ...] = ()
    if setup.program == "hp_to_cp":
        shape = (setup.total, setup.features // setup.cp)
    elif setup.program == "layer":
        from perf.cp.layer import HIDDEN, parameters

        shape, trained = (setup.local, HIDDEN), parameters(setup.cp, group)
    x = torch.randn(shape, generator=generator).to(getattr(torch, setup.dtype)).requires_grad_()
    return Inputs((x, cu), (x, *trained))


# === Forms ======================================================================================================

ROLLS = {"roll": (1, 1), "roll_mtp": (4, 3)}
"""Fields and depths of the rolls."""


def ops_round_trip(x: Tensor, cu_seqlens: Tensor, group: Any, sections: list[int]) -> Tensor:
    y = ops.cp_to_hp(x, cu_seqlens, group, sections)
    return ops.hp_to_cp(y * y, cu_seqlens, group, sections)


def ops_roll(fields: list[Tensor], cu_seqlens: Tensor, group: Any, depths: int) -> list[list[Tensor]]:
    by_field = ops.cp_packed_roll(fields, cu_seqlens, group, [-d for d in range(1, depths + 1)])
    return [list(rolled) for rolled in zip(*by_field, strict=True)]


def _with_sections(form: Function, group: Any, sections: list[int]) -> Function:
    widths = list(sections)

    def program(x: Tensor, cu_seqlens: Tensor) -> Tensor:
        out: Tensor = form(x, cu_seqlens, group, widths)
        return out

    return program


def _with_depths(form: Function, group: Any, depths: int) -> Function:
    def program(fields: list[Tensor], cu_seqlens: Tensor) -> list[list[Tensor]]:
        out: list[list[Tensor]] = form(fields, cu_seqlens, group, depths)
        return out

    return program


# === Floors =====================================================================================================


def floor_of(setup: Setup, inputs: Inputs, group: Any) -> Callable[[], None]:
    """One all-to-all of the bytes that have to move and one copy of the data, per direction change of the layout."""
    if setup.program in ROLLS:
        rows, cu = inputs.arguments
        _, depths = ROLLS[setup.program]
        edges = torch.empty(setup.cp, len(rows), 2, cu.numel() - 1, depths, dtype=rows[0].dtype)

        def exchange_edges() -> None:
            dist.all_to_all_single(torch.empty_like(edges), edges, group=group)
            for _ in range(depths):
                for row in rows:
                    row.clone()

        return exchange_edges
    x = inputs.arguments[0].detach()

    def exchange() -> None:
        for _ in range(2 if setup.program == "round_trip" else 1):
            dist.all_to_all_single(torch.empty_like(x), x, group=group)
            x.clone()

    return exchange
