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
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from packpass.ops._arguments import Scalar
from packpass.ops._cp_exchange import dense
from packpass.ops._cp_group import start
from packpass.ops._cp_layout import raise_if_not_shards
from packpass.ops._native import address_of, native


class _Functions(NamedTuple):
    """Of ``_cp_roll_host.cpp``."""

    bytes: Callable[..., None]
    send: Callable[..., None]
    own: Callable[..., None]
    land: Callable[..., None]


@cache
def _native() -> _Functions | None:
    arguments = {"bytes": "ppp", "send": "ppp", "own": "pi", "land": "ppp"}
    found = {}
    for name, kinds in arguments.items():
        function = native("_cp_roll_host.cpp", f"packpass_roll_{name}", kinds)
        if function is None:
            return None
        found[name] = function
    return _Functions(**found)


def is_available() -> bool:
    """Can it be compiled here?"""
    return _native() is not None


@lru_cache(256)
def _described(
    fields: tuple[int, ...], shifts: tuple[int, ...], wraps: tuple[bool, ...], fills: tuple[Scalar, ...], text: str,
    dtypes: tuple[torch.dtype, ...],
) -> tuple[array[int], list[Tensor]]:  # fmt: skip
    """Rolls as ``_cp_roll_host.cpp`` reads them, and where their fills lie; ``text`` tells -0.0 from 0.0."""
    items = [torch.full((1,), fill, dtype=dtypes[f]) for f, fill in zip(fields, fills, strict=True)]
    table = array("q")
    for f, shift, around, item in zip(fields, shifts, wraps, items, strict=True):
        table.extend((f, shift, around, item.data_ptr()))
    return table, items


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
    local, cu, xs = xs[0].shape[dims[0]], cu_seqlens.contiguous(), [dense(x) for x in xs]
    outs = [torch.empty_like(xs[f]) for f in rolls.fields]
    constant = (tuple(rolls.fields), tuple(rolls.shifts), tuple(rolls.wraps), tuple(rolls.fills), repr(rolls.fills))
    described, _kept = _described(*constant, tuple([x.dtype for x in xs]))
    results = array("q", [out.data_ptr() for out in outs])
    counts = cu.dtype is torch.int64, cu.shape[0], local, size, rank, zigzag, ends_sent, len(xs), len(outs)
    table = array("q", (cu.data_ptr(), *counts, address_of(described), address_of(results)))
    for x, dim in zip(xs, dims, strict=True):
        outer, inner, item = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1 :]), x.itemsize
        table.extend((x.data_ptr(), outer, inner * item, item))

    call, lengths = _native(), array("q", bytes(16 * size))
    assert call is not None
    at, sent_at = address_of(table), address_of(lengths)
    taken_at = sent_at + 8 * size
    call.bytes(at, sent_at, taken_at)
    sent, taken = lengths[:size].tolist(), lengths[size:].tolist()
    if sent[0] < 0:
        raise_if_not_shards(cu_seqlens, local, size, zigzag)
    message = torch.empty(sum(sent), dtype=torch.uint8)
    call.send(at, sent_at, message.data_ptr())
    received, work = start(message, sent, taken, group)
    call.own(at, torch.get_num_threads())
    work.wait()
    call.land(at, taken_at, received.data_ptr())
    return outs
