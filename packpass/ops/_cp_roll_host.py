"""``cp_packed_roll`` in host memory: what stays on a rank is rolled while the rest travels.

    send = [the slots of chunks that rank r's chunks roll in, for r in the other ranks]
    received = all_to_all(send)                                       # as many bytes for each as it needs
    outs = [row of chunks rolled, for each roll]                      # meanwhile
    outs[slots near the edges of chunks] = received

Boundaries are host memory: every rank knows what each of the others needs of it and has for it, so that a message holds
these slots and nothing else, of all fields whatever their dtypes, and needs no table to be read.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from packpass._compat import process_group_of
from packpass.ops._arguments import Scalar
from packpass.ops._cp_exchange import dense, start
from packpass.ops._cp_layout import raise_if_not_shards
from packpass.ops._native import addresses, native

ARGUMENTS = {
    "packpass_roll_bytes": "ppp",
    "packpass_roll_send": "ppp",
    "packpass_roll_own": "pi",
    "packpass_roll_land": "ppp",
}


def _native(name: str) -> Callable[..., Any] | None:
    return native("_cp_roll_host.cpp", name, ARGUMENTS[name])


def is_available() -> bool:
    """Can it be compiled here?"""
    return all(_native(name) is not None for name in ARGUMENTS)


def _call(name: str, *arguments: Any) -> None:
    function = _native(name)
    assert function is not None, name
    function(*addresses(*arguments))


@lru_cache(512)
def _item(text: str, fill: Scalar, dtype: torch.dtype) -> Tensor:
    """One value in memory; ``text`` tells -0.0 from 0.0."""
    return torch.full((1,), fill, dtype=dtype)


class Rolls(NamedTuple):
    """All rolls of an exchange, with an entry for each."""

    fields: list[int]
    shifts: list[int]
    fills: list[Scalar]
    wraps: list[bool]


def rolled(
    xs: list[Tensor], cu_seqlens: Tensor, rolls: Rolls, dims: list[int], group: str, size: int, rank: int, zigzag: bool,
    ends_sent: bool,
) -> list[Tensor]:  # fmt: skip
    """All rolls by one exchange.

    Args:
        xs: fields, packed along ``dims`` (at least 0).
        ends_sent: the rank that holds an end of a document sends what lies outside of it, of which its ``rolls`` say
            what it is; those of other ranks do not matter.
    """
    local = xs[0].shape[dims[0]]
    raise_if_not_shards(cu_seqlens, local, size, zigzag)
    xs, cu = [dense(x) for x in xs], cu_seqlens.long().contiguous()
    outs = [torch.empty_like(xs[f]) for f in rolls.fields]
    items = [_item(repr(fill), fill, xs[f].dtype) for f, fill in zip(rolls.fields, rolls.fills, strict=True)]
    table = array("q", (cu.data_ptr(), cu.numel(), local, size, rank, zigzag, ends_sent, len(xs), len(outs)))
    for x, dim in zip(xs, dims, strict=True):
        outer, inner, item = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1 :]), x.itemsize
        table.extend((x.data_ptr(), outer, inner * item, item))
    for f, shift, wraps, out, fill in zip(rolls.fields, rolls.shifts, rolls.wraps, outs, items, strict=True):
        table.extend((f, shift, wraps, out.data_ptr(), fill.data_ptr()))

    sent, taken = array("q", bytes(8 * size)), array("q", bytes(8 * size))
    _call("packpass_roll_bytes", table, sent, taken)
    message = torch.empty(sum(sent), dtype=torch.uint8)
    _call("packpass_roll_send", table, sent, message)
    received, work = start(message, process_group_of(group), sent.tolist(), taken.tolist())
    _call("packpass_roll_own", table, torch.get_num_threads())
    work.wait()
    _call("packpass_roll_land", table, taken, received)
    return outs
