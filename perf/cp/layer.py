"""The gated-delta-net-like layer with its changes of layout written in each of the ways."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from packpass import ops
from perf.cp import by_hand, naive
from perf.models.gdn import GatedDeltaNet, GDNConfig

if TYPE_CHECKING:
    from perf.cp.programs import Ways

CONFIG = GDNConfig()
HIDDEN = CONFIG.hidden


@functools.cache
def _layer(cp: int, rank: int) -> GatedDeltaNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GatedDeltaNet(CONFIG, rank, cp)


def parameters(cp: int, group: Any) -> tuple[Tensor, ...]:
    return tuple(_layer(cp, dist.get_rank(group)).parameters())


def layer_ways(cp: int, group: Any) -> Ways:
    """The same layer, with the same parameters, in all ways."""
    from perf.cp.programs import Ways

    layer = _layer(cp, dist.get_rank(group))
    return Ways(*(_with_exchange(layer, form, group) for form in (naive, by_hand, ops)))


def _with_exchange(layer: GatedDeltaNet, form: Any, group: Any) -> Callable[[Tensor, Tensor], Tensor]:
    cp_to_hp, hp_to_cp = form.cp_to_hp, form.hp_to_cp

    def to_heads(x: Tensor, cu_seqlens: Tensor, sections: list[int]) -> Tensor:
        out: Tensor = cp_to_hp(x, cu_seqlens, group, sections)
        return out

    def to_tokens(x: Tensor, cu_seqlens: Tensor, sections: list[int]) -> Tensor:
        out: Tensor = hp_to_cp(x, cu_seqlens, group, sections)
        return out

    def program(x: Tensor, cu_seqlens: Tensor) -> Tensor:
        out: Tensor = layer(x, cu_seqlens, to_heads, to_tokens)
        return out

    return program
