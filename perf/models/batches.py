"""Batches of packed text for the models, and the reference: the same documents one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from perf.data import PackedRow
from perf.models.mtp import IGNORE, Output

Model = Callable[[Tensor, Tensor, Tensor, Tensor], Output]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Arguments of a model's call: int64 ``input_ids`` and ``position_ids`` and float ``loss_mask``, all ``[1, T]``,
    and int32 ``cu_seqlens`` ``[N+1]``. Slots of no document have mask 0."""

    input_ids: Tensor
    position_ids: Tensor
    loss_mask: Tensor
    cu_seqlens: Tensor

    def to(self, device: str) -> Batch:
        return Batch(*(value.to(device) for value in self.arguments()))

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.input_ids, self.position_ids, self.loss_mask, self.cu_seqlens

    def documents(self) -> Iterator[Batch]:
        """Every document as a row of its own."""
        for start, stop in pairwise(self.cu_seqlens.tolist()):
            if stop > start:
                ids, positions, mask = (x[:, start:stop] for x in self.arguments()[:3])
                yield Batch(ids, positions, mask, self.cu_seqlens.new_tensor([0, stop - start]))


def batch_of(row: PackedRow) -> Batch:
    """Positions count from every document's start; everything in a document is learned from."""
    slots = torch.arange(row.ids.shape[1])
    passed = torch.bucketize(slots, row.cu_seqlens, right=True)
    starts = torch.cat((row.cu_seqlens.new_zeros(1), row.cu_seqlens)).long()
    inside = (passed > 0) & (passed < row.cu_seqlens.numel())
    return Batch(row.ids, (slots - starts[passed])[None], inside.float()[None], row.cu_seqlens)


@dataclasses.dataclass
class Step:
    """Losses per token (main, then per depth) of one batch."""

    losses: list[float]


def backward(model: Model, batch: Batch) -> Step:
    """Forward and backward of the packed row; gradients are those of the loss per token."""
    output = model(*batch.arguments())
    (output.loss / output.tokens).backward()
    return _step(output.loss, output.tokens, output.depth_losses, output.depth_tokens)


def backward_one_by_one(model: Model, batch: Batch) -> Step:
    """The same for every document alone, summed: what packing must not change."""
    tokens = sum(max(0, document.input_ids.shape[1] - 1) for document in batch.documents())
    outputs = []
    for document in batch.documents():
        output = model(*document.arguments())
        (output.loss / tokens).backward()
        outputs.append(tuple(value.detach() for value in output[:4]))
    return _step(*(torch.stack(values).sum(0) for values in zip(*outputs, strict=True)))


def _step(loss: Tensor, tokens: Tensor, depth_losses: Tensor, depth_tokens: Tensor) -> Step:
    sums, counts = torch.cat((loss.detach()[None], depth_losses)), torch.cat((tokens[None], depth_tokens))
    return Step((sums / counts.clamp(min=1)).tolist())


def contaminated(output: Output, cu_seqlens: Tensor) -> int:
    """Labels that count and are no token of their slot's document: at depth k (the next token is depth 0), all that the
    last k + 1 slots of a document predict, and all of the tail."""
    total = output.labels.shape[-1]
    slots = torch.arange(total, device=cu_seqlens.device)
    passed = torch.bucketize(slots, cu_seqlens, right=True)
    ends = torch.cat((cu_seqlens.new_zeros(1), cu_seqlens[1:], cu_seqlens.new_zeros(1))).long()[passed]
    counting = (output.labels != IGNORE) & (output.masks != 0)
    return sum(int((counting[depth] & (slots + depth + 1 >= ends)).sum()) for depth in range(len(counting)))


def missing(output: Output, batch: Batch) -> int:
    """Labels that should count and do not, or are not the token ``depth + 1`` slots ahead."""
    wrong = 0
    for depth in range(len(output.labels)):
        ahead = depth + 1
        for start, stop in pairwise(batch.cu_seqlens.tolist()):
            if stop - start > ahead:
                labels = output.labels[depth, 0, start : stop - ahead]
                masks = output.masks[depth, 0, start : stop - ahead]
                right = (labels == batch.input_ids[0, start + ahead : stop]) & (masks != 0)
                wrong += int((~right).sum())
    return wrong


def largest_gradient_error(one: Iterable[Tensor | None], other: Iterable[Tensor | None]) -> float:
    """Largest difference of any gradient, relative to the largest entry of that gradient."""
    worst = 0.0
    for a, b in zip(one, other, strict=True):
        if a is None or b is None:
            if a is not b:
                return float("inf")
            continue
        worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)))
    return worst
