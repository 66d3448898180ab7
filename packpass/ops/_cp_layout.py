"""``shard_rows`` (internal): where the slots of a whole row lie among the shards of a context-parallel group.

    row = 0
    for r in range(group_size):                     # the shards, one after the other, are rows [0, T)
        for start, stop in pairwise(cu):            # T = group_size * local slots in all
            chunks = range(start, stop).chunk(2 * group_size)
            for slot in (*chunks[r], *chunks[2 * group_size - 1 - r]):
                rows[slot] = row                    # inverse=True: rows[row] = slot
                row += 1

Slots of the tail (before cu[0] and after cu[N]) are cut into ``group_size`` chunks; rank r holds chunk r. Without
``zigzag`` so are the documents.

One op of its own, so that all layers of a graph share it; it checks the boundaries as well. On the CPU they are host
memory: a wrong length raises a ValueError that names the document. On a GPU it is a binary search per slot and an
asynchronous assertion, without a host sync.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packpass._compat import assert_async
from packpass.ops._boundaries_passed import search
from packpass.ops._check_cu_seqlens import conditions, raise_if_out_of_order
from packpass.ops._geometry import previous
from packpass.ops._library import define
from packpass.ops._native import native


def assert_shards(cu_seqlens: Tensor, local: int, group_size: int, zigzag: bool = True) -> None:
    """Assert without a host read that the boundaries can be sharded; on the CPU a RuntimeError at once.

    Args:
        local: slots of one rank's shard.
    """
    parts = _cuts(zigzag) * group_size
    for condition, message in conditions(cu_seqlens, local * group_size, None):
        assert_async(condition, message)
    even = ((cu_seqlens - previous(cu_seqlens)) % parts == 0).all() & (cu_seqlens.select(0, 0) % group_size == 0)
    assert_async(
        even,
        f"packpass: every document's length must divide by {_times(zigzag)}the context-parallel group's size = "
        f"{parts}, and cu_seqlens[0] by {group_size}; on the CPU the error names the document",
    )


def _cuts(zigzag: bool) -> int:
    """Chunks of a document that one rank holds."""
    return 2 if zigzag else 1


def _times(zigzag: bool) -> str:
    return "2 * " if zigzag else ""


def raise_if_not_shards(cu_seqlens: Tensor, local: int, group_size: int, zigzag: bool = True) -> None:
    """Raise the ValueError for the first entry or document that is wrong; reads the values."""
    cu: list[int] = cu_seqlens.tolist()
    parts = _cuts(zigzag) * group_size
    for d, (start, stop) in enumerate(pairwise(cu)):
        if start > stop:
            raise_if_out_of_order("cu_seqlens", cu_seqlens, local * group_size)
        if (stop - start) % parts != 0:
            raise ValueError(
                f"packpass: document {d} has {stop - start} slots (cu_seqlens[{d}] = {start}, cu_seqlens[{d + 1}] = "
                f"{stop}), which do not divide by {_times(zigzag)}the context-parallel group's size = {parts}; pad "
                "every document to a multiple of it"
            )
    if cu[0] < 0 or cu[-1] > local * group_size:
        raise_if_out_of_order("cu_seqlens", cu_seqlens, local * group_size)
    if cu[0] % group_size != 0:
        raise ValueError(
            f"packpass: cu_seqlens[0] = {cu[0]} does not divide by the context-parallel group's size {group_size}"
        )


def _stretches(cu_seqlens: Tensor, total: int, zigzag: bool) -> tuple[Tensor, Tensor]:
    """``[0, cu[0], ..., cu[N], total]`` and how many chunks are cut of what starts there (without group_size)."""
    cu = cu_seqlens.long()
    edges = torch.cat([cu.new_zeros(1), cu, cu.new_full((1,), total)])
    last = edges.shape[0] - 1
    places = torch.arange(last + 1, device=cu.device)
    return edges, torch.where((places > 0) & (places < last - 1), _cuts(zigzag), 1)


def search_form(cu_seqlens: Tensor, local: int, group_size: int, inverse: bool, zigzag: bool = True) -> Tensor:
    """Any device, no host read. With wrong boundaries the result is wrong, but within the row."""
    total = local * group_size
    edges, cuts = _stretches(cu_seqlens, total, zigzag)
    here = torch.arange(total, device=cu_seqlens.device)
    if inverse:
        rank, slot = here // local, here % local
        stretch = torch.bucketize(slot, cu_seqlens.long() // group_size, right=True)
    else:
        stretch = search(cu_seqlens, total)
    start, stop = edges.index_select(0, stretch), edges.index_select(0, stretch + 1)
    cut = cuts.index_select(0, stretch)
    chunk_length = ((stop - start) // (group_size * cut)).clamp(min=1)
    if inverse:
        offset = slot - start // group_size
        second = (offset >= chunk_length) & (cut == 2)
        slots = start + torch.where(second, (2 * group_size - 2 - rank) * chunk_length, rank * chunk_length) + offset
        return slots.clamp(0, max(total - 1, 0))
    position = here - start
    chunk = position // chunk_length
    second = chunk >= group_size
    rank = torch.where(second, 2 * group_size - 1 - chunk, chunk)
    offset = position - chunk * chunk_length + torch.where(second, chunk_length, 0)
    return (rank * local + start // group_size + offset).clamp(0, max(total - 1, 0))


def _kernel(cu_seqlens: Tensor, local: int, group_size: int, inverse: bool, zigzag: bool = True) -> Tensor:
    assert_shards(cu_seqlens, local, group_size, zigzag)
    return search_form(cu_seqlens, local, group_size, inverse, zigzag)


def _native() -> Callable[..., Any] | None:
    return native("_cp_rows.cpp", "packpass_shard_rows", "ppiiiii")


def _cpu_kernel(cu_seqlens: Tensor, local: int, group_size: int, inverse: bool, zigzag: bool = True) -> Tensor:
    """In C++, because a dozen small tensors take as long as the copy of a row that they order."""
    raise_if_not_shards(cu_seqlens, local, group_size, zigzag)
    function = _native()
    if function is None:
        return tensor_form(cu_seqlens, local, group_size, inverse, zigzag)
    cu = cu_seqlens.long().contiguous()
    out = torch.empty(local * group_size, dtype=torch.int64)
    function(cu.data_ptr(), out.data_ptr(), cu.shape[0], local, group_size, inverse, zigzag)
    return out


def tensor_form(cu_seqlens: Tensor, local: int, group_size: int, inverse: bool, zigzag: bool = True) -> Tensor:
    """The same in host memory without a compiler, for boundaries that have been checked. Row minus slot is the same for
    all slots of a chunk."""
    total = local * group_size
    edges = [0, *cu_seqlens.tolist(), total]
    stretches = list(pairwise(edges))
    cuts = [1, *[_cuts(zigzag)] * (len(stretches) - 2), 1]
    lengths = torch.tensor([(b - a) // (group_size * cut) for (a, b), cut in zip(stretches, cuts, strict=True)])
    ahead = torch.tensor([a - a // group_size for a, _ in stretches])

    chunk = torch.arange(2 * group_size)
    if inverse:  # in the order of the rows: [rank, stretch, first or second chunk]; else [stretch, chunk]
        chunk = torch.stack([chunk[:group_size], chunk.flip(0)[:group_size]], 1).unsqueeze(1)
    rank = torch.minimum(chunk, 2 * group_size - 1 - chunk)
    second = chunk >= group_size
    step = (rank * local - ahead.unsqueeze(1)).add_((second.long() - chunk) * lengths.unsqueeze(1))
    counts = lengths.unsqueeze(1).expand(step.shape)
    if not zigzag or lengths[0] != 0 or lengths[-1] != 0:  # tails have no second chunks
        counts = counts.masked_fill(second & (torch.tensor(cuts) == 1).unsqueeze(1), 0)
    step = step.neg_() if inverse else step
    return torch.repeat_interleave(step.flatten(), counts.flatten(), output_size=total).add_(torch.arange(total))


def _fake(cu_seqlens: Tensor, local: int, group_size: int, inverse: bool, zigzag: bool = True) -> Tensor:
    return cu_seqlens.new_empty((local * group_size,), dtype=torch.int64)


def _decomposition(cu_seqlens: Tensor, local: int, group_size: int, inverse: bool, zigzag: bool = True) -> Tensor:
    if cu_seqlens.device.type == "cpu":
        rows: Tensor = host_shard_rows_op(cu_seqlens, local, group_size, inverse, zigzag)
        return rows
    return _kernel(cu_seqlens, local, group_size, inverse, zigzag)


shard_rows_op = define(
    "shard_rows(Tensor cu_seqlens, SymInt local, int group_size, bool inverse, bool zigzag=True) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
    decomposition=_decomposition,
)
# The eager kernel under a name that has no decomposition, because Inductor refuses to call an op that also has one.
host_shard_rows_op = define(
    "host_shard_rows(Tensor cu_seqlens, SymInt local, int group_size, bool inverse, bool zigzag=True) -> Tensor",
    fake=_fake,
    kernel=_cpu_kernel,
)


# === The check alone, for ops that need no order ================================================================


def _check_fake(cu_seqlens: Tensor, local: int, group_size: int, zigzag: bool = True) -> None:
    return None


def _check_decomposition(cu_seqlens: Tensor, local: int, group_size: int, zigzag: bool = True) -> None:
    (host_check_shards_op if cu_seqlens.device.type == "cpu" else assert_shards)(cu_seqlens, local, group_size, zigzag)


check_shards_op = define(
    "check_shards(Tensor cu_seqlens, SymInt local, int group_size, bool zigzag=True) -> ()",
    fake=_check_fake,
    kernel=assert_shards,
    cpu_kernel=raise_if_not_shards,
    decomposition=_check_decomposition,
)
host_check_shards_op = define(
    "host_check_shards(Tensor cu_seqlens, SymInt local, int group_size, bool zigzag=True) -> ()",
    fake=_check_fake,
    kernel=raise_if_not_shards,
)
# Without an output they would be dead code to every pass over a graph.
torch.fx.has_side_effect(check_shards_op)
torch.fx.has_side_effect(host_check_shards_op)
