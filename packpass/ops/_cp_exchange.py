"""The exchange of ``cp_to_hp`` and ``hp_to_cp`` in host memory: what stays on a rank is copied while the rest travels.

    send = [what rank r gets of x for r in the other ranks]         # in the order of x
    received = all_to_all(send)                                     # nothing goes to this rank itself
    out[this rank's slots] = x[...]                                 # meanwhile
    out[slots of r] = received[r] for r in the other ranks          # in the order of out

A collective that carries a rank's own part as well copies it twice more, and the order that is put in front of it or
behind it by generated code is a copy of everything each. Here every byte is copied once into a message and once out of
it, or once at all if it stays; documents are copied as runs of slots, heads as runs of bytes.

Messages hold the whole shard, tails included, whether or not a rank gives or keeps them: what a rank's own code does
with its tails changes nothing for the others.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from packpass._compat import process_group_of
from packpass.ops._cp_group import SENT, start
from packpass.ops._cp_layout import raise_if_not_shards
from packpass.ops._native import address_of, native

ARGUMENTS = {
    "packpass_exchange_heads": "ppp" + "i" * 10,
    "packpass_exchange_tokens": "ppp" + "i" * 10,
    "packpass_exchange_own": "pppp" + "i" * 11,
}


def _native(name: str) -> Callable[..., Any] | None:
    return native("_cp_exchange.cpp", name, ARGUMENTS[name])


def is_available() -> bool:
    """Can the copies be compiled here?"""
    return all(_native(name) is not None for name in ARGUMENTS)


class Exchange(NamedTuple):
    """How a row is exchanged. ``form``: dtype and device of all tensors; ``given`` and ``made``: are they the
    documents' part of what they are, without the tails?"""

    form: Tensor
    cu: Tensor
    """int64 ``[N+1]``."""
    ends: tuple[int, int]
    """The documents' slots in the whole row."""
    widths: array[int]
    """Bytes of each section's part for one rank."""
    part: int
    """All of them."""
    local: int
    """Slots of a shard, with its tails."""
    mid: int
    """Rows of a slot."""
    group: str
    size: int
    rank: int
    zigzag: bool
    given: bool
    made: bool

    @property
    def tails(self) -> bool:
        """Are they copied?"""
        return not self.given and not self.made

    def new(self, shape: list[int], made: bool) -> Tensor:
        """A message, or a result: tails that are in it, but were not given, are 0."""
        first, stop = self.ends
        fills = first == 0 and stop == self.local * self.size
        return self.form.new_zeros(shape) if self.given and not made and not fills else self.form.new_empty(shape)

    def heads(self, tokens: Tensor, others: Tensor, back: bool) -> None:
        first, stop = (end // self.size for end in self.ends)
        part_only = self.given or (back and self.made)
        slots = (first, stop - first) if part_only else (0, self.local)
        at = self._shard(tokens, self.made if back else self.given)
        sizes = len(self.widths), self.local, self.mid, self.size, self.rank, self.part
        _call("packpass_exchange_heads", at, others, self.widths, *sizes, *slots, back)

    def tokens(self, whole: Tensor, others: Tensor, back: bool) -> None:
        tails = not self.given and not (back and self.made)
        at = self._whole(whole, self.made if back else self.given)
        sizes = self.cu.numel(), self.local, self.mid, self.size, self.rank, self.part
        _call("packpass_exchange_tokens", self.cu, at, others, *sizes, self.zigzag, tails, back)

    def own(self, tokens: Tensor, whole: Tensor, back: bool) -> None:
        places = (self.made, self.given) if back else (self.given, self.made)
        at = self._shard(tokens, places[0]), self._whole(whole, places[1])
        sizes = self.cu.numel(), len(self.widths), self.local, self.mid, self.size, self.rank, self.part
        _call("packpass_exchange_own", self.cu, *at, self.widths, *sizes, self.zigzag, self.tails, back)

    def _shard(self, tokens: Tensor, documents: bool) -> int:
        """Where the shard's first slot lies, or would."""
        return tokens.data_ptr() - documents * (self.ends[0] // self.size) * self.mid * self.size * self.part

    def _whole(self, whole: Tensor, documents: bool) -> int:
        return whole.data_ptr() - documents * self.ends[0] * self.mid * self.part


def _call(name: str, *arguments: Any) -> None:
    function = _native(name)
    assert function is not None, name
    function(*map(address_of, arguments), torch.get_num_threads())


def _exchange(
    x: Tensor, cu_seqlens: Tensor, widths: list[int], local: int, dim: int, group: str, size: int, zigzag: bool,
    given: bool, made: bool,
) -> Exchange:  # fmt: skip
    raise_if_not_shards(cu_seqlens, local, size, zigzag)
    cu, rank = cu_seqlens.long().contiguous(), process_group_of(group).rank()
    parts = array("q", [width * x.dtype.itemsize for width in widths])
    ends, mid = (int(cu[0]), int(cu[-1])), math.prod(x.shape[1:dim])
    return Exchange(x, cu, ends, parts, sum(parts), local, mid, group, size, rank, zigzag, given, made)


def _check_given(x: Tensor, slots: int) -> None:
    if x.shape[0] != slots:
        raise ValueError(f"packpass: the documents have {slots} slots, but {x.shape[0]} were given")


def dense(x: Tensor) -> Tensor:
    return x.resolve_conj().resolve_neg().contiguous()


def _start(send: Tensor, exchange: Exchange) -> tuple[Tensor, Any]:
    """`start` of ``send [size - 1, ...]``, an entry for each other rank."""
    each = [int(rank != exchange.rank) for rank in range(exchange.size)]
    words = send.flatten(1) if send.dtype in SENT else send.flatten(1).view(torch.uint8)
    return start(words, each, each, exchange.group)


def to_heads(
    x: Tensor, cu_seqlens: Tensor, widths: list[int], dim: int, group: str, size: int, zigzag: bool, documents: bool,
    total: int | None, shape: list[int],
) -> Tensor:  # fmt: skip
    """`cp_to_hp`: x a shard, the result the whole row.

    Args:
        widths: of each section's part for one rank, in elements.
        documents: the result is the documents' part of the row.
        total: slots of the shard, of which x is the documents' part; None: x is all of it.
        shape: of the result, with its tails.
    """
    local = x.shape[0] if total is None else total
    plan = _exchange(x, cu_seqlens, widths, local, dim, group, size, zigzag, total is not None, documents)
    first, stop = plan.ends
    if total is not None:
        _check_given(x, (stop - first) // size)
    x, out = dense(x), plan.new([stop - first if documents else shape[0], *shape[1:]], documents)
    send = plan.new([size - 1, local * plan.mid, sum(widths)], False)
    plan.heads(x, send, back=False)
    received, work = _start(send, plan)
    plan.own(x, out, back=False)
    work.wait()
    plan.tokens(out, received, back=True)
    return out


def to_tokens(
    y: Tensor, cu_seqlens: Tensor, widths: list[int], dim: int, group: str, size: int, zigzag: bool, documents: bool,
    total: int | None, shape: list[int],
) -> Tensor:  # fmt: skip
    """`hp_to_cp`, the inverse: y the whole row (``total`` its slots), the result a shard."""
    local = (y.shape[0] if total is None else total) // size
    plan = _exchange(y, cu_seqlens, widths, local, dim, group, size, zigzag, total is not None, documents)
    first, stop = plan.ends
    if total is not None:
        _check_given(y, stop - first)
    y, out = dense(y), plan.new([(stop - first) // size if documents else shape[0], *shape[1:]], documents)
    send = plan.new([size - 1, local * plan.mid, sum(widths)], False)
    plan.tokens(y, send, back=False)
    received, work = _start(send, plan)
    plan.own(out, y, back=True)
    work.wait()
    plan.heads(out, received, back=True)
    return out
