"""Measure what collectives cost on a process group.

Ranks decide alike only if they know the same figures. So nothing is ever measured while something is compiled:
:func:`measure_group` is a collective call of the user's, after which every rank of the group holds the figures of its
first rank (`packpass._links`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from packpass._links import Link, remember
from packpass.measuring.measure import synchronize

SMALL_BYTES, LARGE_BYTES = 1024, 4 * 2**20


def measure_group(group: Any = None, *, device: Any = None) -> Link:
    """Measure a process group, for the cost model that decides which all-to-all are worth joining.

    A collective call: every rank of the group makes it, outside compiled code and before compiling the model. All
    ranks keep the figures of the group's first rank.

    Args:
        group: a ``torch.distributed.ProcessGroup``, or None for the default one.
        device: where its tensors are; by default the current GPU if the group's backend needs one, else the CPU.

    Returns:
        The figures that are now used for this group.

    Raises:
        RuntimeError: no process group, or called while compiling.
        ValueError: this rank is not in the group.
    """
    import torch
    import torch.distributed as dist

    if torch.compiler.is_compiling():
        raise RuntimeError("packpass.measure_group runs collectives and must not be called in compiled code")
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("packpass.measure_group needs torch.distributed.init_process_group to be called first")
    group = dist.group.WORLD if group is None else group
    if dist.get_rank(group) < 0:
        raise ValueError("packpass.measure_group: this rank is not in the group")
    if device is None:
        device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    size = dist.get_world_size(group)
    small, large = (
        torch.zeros(size, max(1, total // size), dtype=torch.uint8, device=device)
        for total in (SMALL_BYTES, LARGE_BYTES)
    )
    received_small, received_large = torch.empty_like(small), torch.empty_like(large)
    latency = _seconds(lambda: dist.all_to_all_single(received_small, small, group=group), 30)
    exchange = _seconds(lambda: dist.all_to_all_single(received_large, large, group=group), 7)
    copy = _seconds(lambda: received_large.copy_(large), 7)
    sent = large.nbytes * (size - 1) / size
    figures = torch.tensor(
        [latency * 1e6, sent / max(exchange - latency, 1e-9) / 1e9 or 1e-3, large.nbytes / max(copy, 1e-9) / 1e9],
        dtype=torch.float64,
        device=device,
    )
    dist.broadcast(figures, dist.get_global_rank(group, 0), group=group)
    link = Link(*figures.tolist())
    remember(group, link)
    return link


def _seconds(call: Callable[[], Any], times: int) -> float:
    """Median of so many calls after some to warm up; the same number of calls on every rank."""
    samples = []
    for i in range(times + 3):
        synchronize()
        started = time.perf_counter()
        call()
        synchronize()
        if i >= 3:
            samples.append(time.perf_counter() - started)
    return statistics.median(samples)
