"""One packed model as people write them, and what it has to compute.

`Model` loops over documents in its root and in each block, and shifts its labels as if the row were one document; that
shift leaks, and packpass fixes it on purpose. `Reference` is the same model with the shift done document by document:
what a trainer that compiles `Model` with packpass must agree with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, DEPTHS = 31, 8, 2
IGNORED = -100


class Block(nn.Module):
    """Tokens of a document in reverse order, then a layer on every token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        documents = []
        for i in range(len(cu_seqlens) - 1):
            document = x[:, cu_seqlens[i] : cu_seqlens[i + 1]]
            documents.append(document.flip(1))
        return x + self.down(F.gelu(self.up(self.norm(torch.cat(documents, dim=1)))))


def call(block: nn.Module, *inputs: Tensor) -> Tensor:
    """A block as it is; checkpoints are other ways of calling it."""
    return block(*inputs)


class Model(nn.Module):
    """Positions, two blocks, and a loss over several depths of next tokens."""

    def __init__(self, run: Callable[..., Tensor] = call) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.run = run

    def shifted(self, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
        labels = torch.roll(labels, -1, dims=1)
        labels[:, -1] = IGNORED
        return labels

    def body(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.run(block, x, cu_seqlens)
        return x

    def forward(self, input_ids: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
        positions = torch.zeros_like(input_ids)
        for i in range(len(cu_seqlens) - 1):
            start, end = cu_seqlens[i], cu_seqlens[i + 1]
            positions[:, start:end] = torch.arange(end - start)
        x = self.embed(input_ids) + self.position(positions)
        x = self.body(x, cu_seqlens)
        logits = self.head(x).float()
        loss = logits.new_zeros(())
        for _ in range(DEPTHS):
            labels = self.shifted(labels, cu_seqlens)
            loss = loss + F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        return loss


class Reference(Model):
    """`Model` with labels that stop at documents."""

    def shifted(self, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
        out = labels.clone()
        for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
            document = torch.roll(labels[:, start:end], -1, dims=1)
            document[:, -1:] = IGNORED
            out[:, start:end] = document
        return out


class Inline(Model):
    """All in one function: its loops and its shift stand beside the Python loop over the blocks."""

    def forward(self, input_ids: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
        positions = torch.zeros_like(input_ids)
        for i in range(len(cu_seqlens) - 1):
            start, end = cu_seqlens[i], cu_seqlens[i + 1]
            positions[:, start:end] = torch.arange(end - start)
        x = self.embed(input_ids) + self.position(positions)
        for block in self.blocks:
            x = block(x, cu_seqlens)
        labels = torch.roll(labels, -1, dims=1)
        labels[:, -1] = IGNORED
        return F.cross_entropy(self.head(x).float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


class InlineShift(Model):
    """A naive shift beside the loop over the blocks, and no other loop there."""

    def forward(self, input_ids: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x, cu_seqlens)
        labels = F.pad(labels, (0, 1), value=IGNORED)[:, 1:]
        return F.cross_entropy(self.head(x).float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


class Gathered(Model):
    """How many tokens the documents are together is known only when it runs."""

    def forward(self, input_ids: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
        x = self.body(self.embed(input_ids) + self.position(input_ids), cu_seqlens)
        documents = [x[:, cu_seqlens[i] : cu_seqlens[i + 1]].flip(1) for i in range(len(cu_seqlens) - 1)]
        return self.head(torch.cat(documents, dim=1)).square().sum() / 100


LENGTHS = ((5, 11, 8), (24,), (1, 7, 2, 9, 5), (13, 11), (4, 4, 1, 15))
"""Documents of each of five steps: another number every time, 24 tokens together."""
GROWING = ((5, 11, 8), (28,), (1, 7, 2, 9, 5), (30, 2), (4, 4, 1, 15, 8, 1))
"""The same with rows of different lengths."""


def batches(lengths: tuple[tuple[int, ...], ...], rank: int = 0) -> Iterator[dict[str, Tensor]]:
    """Packed rows with these documents; every rank has tokens of its own."""
    generator = torch.Generator().manual_seed(rank)
    for documents in lengths:
        ids = torch.randint(VOCABULARY, (1, sum(documents)), generator=generator)
        cu_seqlens = torch.tensor((0, *documents)).cumsum(0, dtype=torch.int32)
        yield {"input_ids": ids, "labels": ids.clone(), "cu_seqlens": cu_seqlens}


def made(cls: type[Model] = Model, **arguments: Any) -> Model:
    """A model with weights that do not depend on anything but its class."""
    torch.manual_seed(7)
    return cls(**arguments)
