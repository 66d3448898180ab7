"""``pack_plan`` (internal): where the real tokens of a padded batch lie in the packed row, and the other way round.

    cu, cu_padded = [0], [0]
    source, position_ids, padding_mask = [-1] * total, [0] * total, [True] * total
    slots[:] = -1                                                   # [B, S]
    for b, row in enumerate(keep):                                  # [B, S], True: a real token
        for n, s in enumerate(row.nonzero()):
            slots[b, s] = p = cu_padded[b] + n
            source[p], position_ids[p], padding_mask[p] = b * S + s, n, False
        cu.append(cu[b] + row.sum())
        cu_padded.append(cu_padded[b] + ceil(row.sum() / multiple_of) * multiple_of)
    for slots that pad a document, and those behind the last one:
        position_ids[p] = (p - start of the document, or end of the last) % S

``pack_sizes`` gives the least ``total`` and the longest document's length. Both are device tensors' worth of work: no
host read. With too small a total the CPU raises a ValueError that names the row, a GPU asserts asynchronously.

Position ids of padding go on counting, so that whoever looks for zeros to find documents finds no further ones, but
stay below S: a table of S positions is enough.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from packpass._compat import assert_async
from packpass.ops._boundaries_passed import search
from packpass.ops._geometry import previous
from packpass.ops._library import define
from packpass.ops._pack_native import native

# cu_seqlens, cu_seqlens_padded (int32 [B+1]); source (int64 [T]), slots (int64 [B, S]); position_ids (int64 [T]),
# padding_mask (bool [T])
Plan = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]

MESSAGE = "packpass: the real tokens do not fit the total number of slots of pack; on the CPU the error names the row"


def _rounded(lengths: Tensor, multiple_of: int) -> Tensor:
    return lengths if multiple_of == 1 else (lengths + (multiple_of - 1)) // multiple_of * multiple_of


def _boundaries(keep: Tensor, multiple_of: int) -> tuple[Tensor, Tensor]:
    """Of any device: ``cu_seqlens`` and ``cu_seqlens_padded``, int32 ``[B+1]``."""
    lengths = keep.sum(1)
    entry = torch.arange(keep.shape[0] + 1, device=keep.device)
    if guard_or_false(keep.shape[0] == 0):
        return entry.int(), entry.int()
    # The length of the document before each boundary; no cat, which would take kernels of its own.
    before = torch.where(entry > 0, lengths.index_select(0, (entry - 1).clamp(min=0)), 0)
    return before.cumsum(0).int(), _rounded(before, multiple_of).cumsum(0).int()


def _cpu_boundaries(keep: Tensor, multiple_of: int) -> tuple[Tensor, Tensor]:
    function = native("packpass_pack_boundaries")
    if function is None:
        return _boundaries(keep, multiple_of)
    rows, length = keep.shape
    cu, cu_padded = (torch.empty(rows + 1, dtype=torch.int32) for _ in range(2))
    function(keep.data_ptr(), cu.data_ptr(), cu_padded.data_ptr(), rows, length, multiple_of)
    return cu, cu_padded


# === Sizes ======================================================================================================


def _sizes_of(cu: Tensor, cu_padded: Tensor) -> Tensor:
    return torch.stack([cu_padded.select(0, -1), (cu - previous(cu)).amax()]).long()


def _sizes(keep: Tensor, multiple_of: int) -> Tensor:
    return _sizes_of(*_boundaries(keep, multiple_of))


def _cpu_sizes(keep: Tensor, multiple_of: int) -> Tensor:
    return _sizes_of(*_cpu_boundaries(keep.contiguous(), multiple_of))


def _sizes_fake(keep: Tensor, multiple_of: int) -> Tensor:
    return keep.new_empty((2,), dtype=torch.int64)


def _sizes_decomposition(keep: Tensor, multiple_of: int) -> Tensor:
    sizes: Tensor = (host_pack_sizes_op if keep.device.type == "cpu" else _sizes)(keep, multiple_of)
    return sizes


pack_sizes_op = define(
    "pack_sizes(Tensor keep, int multiple_of) -> Tensor",
    fake=_sizes_fake,
    kernel=_sizes,
    cpu_kernel=_cpu_sizes,
    decomposition=_sizes_decomposition,
)
# The eager kernels under names that have no decomposition, because Inductor refuses to call an op that also has one.
host_pack_sizes_op = define(
    "host_pack_sizes(Tensor keep, int multiple_of) -> Tensor", fake=_sizes_fake, kernel=_cpu_sizes
)


# === The plan ===================================================================================================


def _plan(keep: Tensor, cu: Tensor, cu_padded: Tensor, total: int) -> Plan:
    """Of any device, from boundaries that fit: a running count, and two binary searches per slot."""
    rows, length = keep.shape
    starts, starts_padded = cu.long(), cu_padded.long()
    running = keep.long().cumsum(1)
    row = torch.arange(rows, device=keep.device)
    first = starts.index_select(0, row).unsqueeze(1)
    slots = torch.where(keep, starts_padded.index_select(0, row).unsqueeze(1) + running - 1, -1)

    passed = search(cu_padded, total)
    document, following = (passed - 1).clamp(min=0), passed.clamp(max=rows)
    here = torch.arange(total, device=keep.device)
    start = starts.index_select(0, document)
    offset = here - starts_padded.index_select(0, document)
    real = offset < starts.index_select(0, following) - start
    # Flat before the addition: up to torch 2.12 Inductor cannot search in a view of what it has just computed.
    counts = running.flatten() + first.expand_as(running).flatten()
    found = torch.bucketize(start + offset, counts, right=True)
    source = torch.where(real, found, -1)
    position_ids = torch.where(real, offset, offset % max(length, 1))
    return cu, cu_padded, source, slots, position_ids, real.logical_not()


def _kernel(keep: Tensor, multiple_of: int, total: int) -> Plan:
    cu, cu_padded = _boundaries(keep, multiple_of)
    assert_async(cu_padded.select(0, -1) <= total, MESSAGE)
    return _plan(keep, cu, cu_padded, total)


def _cpu_kernel(keep: Tensor, multiple_of: int, total: int) -> Plan:
    keep = keep.contiguous()
    cu, cu_padded = _cpu_boundaries(keep, multiple_of)
    if int(cu_padded[-1]) > total:
        _raise_full(cu, cu_padded, total)
    function = native("packpass_pack_plan")
    if function is None:
        return _plan(keep, cu, cu_padded, total)
    rows, length = keep.shape
    source, position_ids = (torch.empty(total, dtype=torch.int64) for _ in range(2))
    slots = torch.empty((rows, length), dtype=torch.int64)
    padding_mask = torch.empty(total, dtype=torch.bool)
    tensors = (keep, cu_padded, source, slots, position_ids, padding_mask)
    function(*(tensor.data_ptr() for tensor in tensors), rows, length, total)
    return cu, cu_padded, source, slots, position_ids, padding_mask


def _raise_full(cu: Tensor, cu_padded: Tensor, total: int) -> None:
    row = int((cu_padded > total).nonzero()[0]) - 1
    before, after = int(cu_padded[row]), int(cu_padded[row + 1])
    tokens = int(cu[row + 1] - cu[row])
    raise ValueError(
        f"packpass: row {row} with {tokens} real tokens needs {after - before} slots behind the {before} of the rows "
        f"before it, but total is {total}; all {cu.shape[0] - 1} rows need {int(cu_padded[-1])}"
    )


def _fake(keep: Tensor, multiple_of: int, total: int) -> Plan:
    def new(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return keep.new_empty(shape, dtype=dtype)

    rows, length = keep.shape
    cu, cu_padded = (new(rows + 1, dtype=torch.int32) for _ in range(2))
    return cu, cu_padded, new(total), new(rows, length), new(total), new(total, dtype=torch.bool)


def _decomposition(keep: Tensor, multiple_of: int, total: int) -> Plan:
    plan: Plan = (host_pack_plan_op if keep.device.type == "cpu" else _kernel)(keep, multiple_of, total)
    return plan


_RETURNS = "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
pack_plan_op = define(
    f"pack_plan(Tensor keep, int multiple_of, SymInt total) -> {_RETURNS}",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
    decomposition=_decomposition,
)
host_pack_plan_op = define(
    f"host_pack_plan(Tensor keep, int multiple_of, SymInt total) -> {_RETURNS}", fake=_fake, kernel=_cpu_kernel
)
