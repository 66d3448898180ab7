"""What every rank runs under DistributedDataParallel and FSDP2."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo import config
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.trainers.models import LENGTHS, Gathered, Model
from tests.trainers.training import Backward, Compile, Seen, backward, given_up, packpass_compile, train


@contextlib.contextmanager
def small_buckets() -> Iterator[None]:
    """DDP's first bucket as small as the model, so that its optimizer has something to split."""
    usual = dist._DEFAULT_FIRST_BUCKET_BYTES
    dist._DEFAULT_FIRST_BUCKET_BYTES = 256
    try:
        yield
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = usual


def ddp(
    optimize: Any,
    inside: bool = False,
    inner_backend: str = "aot_eager",
    half: Backward = backward,
    lengths: Any = LENGTHS,
    **arguments: Any,
) -> Seen:
    """DDP around a compiled model (``inside``) or compiled with it, under one setting of ``optimize_ddp``."""

    def prepare(model: Model, compile: Compile) -> nn.Module:
        wrapped = DistributedDataParallel(compile(model) if inside else model, bucket_cap_mb=0.001)
        return wrapped if inside else compile(wrapped)

    python_reducer = optimize == "python_reducer"
    with config.patch(optimize_ddp=optimize, compiled_autograd=python_reducer), small_buckets():
        return train(prepare, packpass_compile(inner_backend), half, lengths, dist.get_rank(), **arguments)


def ddp_with_unknown_sizes() -> Seen:
    return ddp(True, cls=Gathered, reference=Gathered)


def ddp_with_checkpoints() -> Seen:
    return ddp(True, run=functools.partial(checkpoint, use_reentrant=False))


def accumulating(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Two micro-batches, the first without an exchange of gradients."""
    first = {**batch, "input_ids": batch["input_ids"].flip(1)}
    with model.no_sync():
        backward(model, first)
    return backward(model, batch)


def sharded(model: Model, where: str) -> Model:
    """``fully_shard`` of the blocks, of the root, or of both."""
    for part in [*(model.blocks if where != "root" else ()), *([model] if where != "blocks" else ())]:
        fully_shard(part)
    return model


def fsdp(where: str, inside: bool, inner_backend: str = "aot_eager") -> Seen:
    """FSDP2, compiled before (``inside``) or after sharding."""

    def prepare(model: Model, compile: Compile) -> Any:
        return sharded(compile(model), where) if inside else compile(sharded(model, where))

    return train(prepare, packpass_compile(inner_backend), rank=dist.get_rank())


def fsdp_regional() -> Seen:
    """Each block compiled in place, then sharded, then the root: what large trainers do."""

    def prepare(model: Model, compile: Compile) -> Any:
        for block in model.blocks:
            block.forward = compile(block.forward)
        return sharded(model, "both")

    return train(prepare, rank=dist.get_rank(), reference=Model)


def in_one_function(cls: type[Model]) -> tuple[Seen, dict[int, str], dict[int, str]]:
    """FSDP2 of blocks that are called in a loop beside everything else: what packpass says, and which functions it
    and stock torch give up."""

    def prepare(model: Model, compile: Compile) -> Any:
        return compile(sharded(model, "blocks"))

    seen = train(prepare, rank=dist.get_rank(), reference=cls, cls=cls)
    ours = given_up()
    stock = functools.partial(torch.compile, backend="aot_eager")
    train(prepare, stock, rank=dist.get_rank(), reference=cls, cls=cls)
    return seen, ours, given_up()
