"""What every rank runs under DistributedDataParallel and FSDP2."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo import config
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.trainers.models import GROWING, Model
from tests.trainers.training import Compile, backward, packpass_compile, train


@contextlib.contextmanager
def small_buckets() -> Iterator[None]:
    """DDP's first bucket as small as the model, so that its optimizer has something to split."""
    usual = dist._DEFAULT_FIRST_BUCKET_BYTES
    dist._DEFAULT_FIRST_BUCKET_BYTES = 256
    try:
        yield
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = usual


def ddp(optimize: Any, inside: bool = False, inner_backend: str = "aot_eager", half: Any = backward) -> dict[str, Any]:
    """DDP around a compiled model (``inside``) or compiled with it; also says how many pieces AOTAutograd got."""

    def prepare(model: Model, compile: Compile) -> nn.Module:
        wrapped = DistributedDataParallel(compile(model) if inside else model, bucket_cap_mb=0.001)
        return wrapped if inside else compile(wrapped)

    python_reducer = optimize == "python_reducer"
    with config.patch(optimize_ddp=optimize, compiled_autograd=python_reducer), small_buckets(), pieces() as made:
        seen = train(prepare, packpass_compile(inner_backend), half, GROWING, dist.get_rank())
    return {**dataclasses.asdict(seen), "most_graphs": seen.most_graphs, "pieces": made()}


@contextlib.contextmanager
def pieces() -> Iterator[Any]:
    """How many graphs AOTAutograd got."""
    from torch._dynamo.utils import counters

    before = counters["aot_autograd"]["total"]
    yield lambda: counters["aot_autograd"]["total"] - before


def accumulating(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Two micro-batches, the first without an exchange of gradients."""
    first = {**batch, "input_ids": batch["input_ids"].flip(1)}
    with model.no_sync():
        backward(model, first)
    return backward(model, batch)


def fsdp(where: str, inside: bool, inner_backend: str = "aot_eager") -> dict[str, Any]:
    """``fully_shard`` of the blocks, of the root, or of both; compiled before (``inside``) or after."""

    def prepare(model: Model, compile: Compile) -> nn.Module:
        called: Any = compile(model) if inside else model
        for part in [*(model.blocks if where != "root" else ()), *([called] if where != "blocks" else ())]:
            fully_shard(part)
        return called if inside else compile(model)

    seen = train(prepare, packpass_compile(inner_backend), rank=dist.get_rank())
    return {**dataclasses.asdict(seen), "most_graphs": seen.most_graphs}
