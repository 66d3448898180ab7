"""Random programs that exchange heads for tokens, document by document: one per seed, put together from spellings.

`Fuzzed` is one program with the inputs it takes. A *broken* one orders the chunks in a way of its own: packpass may
rewrite it only to exactly what it computes.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.dist import a2a_programs as spelled

EXCHANGES: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "function": spelled.function,
    "in place": spelled.in_place,
    "functional": spelled.functional,
    "splits": spelled.with_splits,
}
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool)
Order = Callable[[Tensor, int], Tensor]
UNDO: tuple[Order, ...] = (
    spelled.undo_by_chunks, spelled.undo_by_views, spelled.undo_by_index, spelled.undo_by_slices,
)  # fmt: skip
REDO: tuple[Order, ...] = (spelled.redo_by_chunks, spelled.redo_by_views)


@dataclasses.dataclass(frozen=True)
class Fuzzed:
    seed: int
    to_heads: bool
    widths: tuple[int, ...]
    """Of the sections on one rank."""
    heads: int | None
    """Size of a second feature dimension."""
    exchange: str
    dtype: torch.dtype
    order: Order
    cut: str
    send: str
    joined: str
    after: str
    broken: bool = False

    def program(self, x: Tensor, cu: Tensor, group: Any) -> Tensor:
        cp = dist.get_world_size(group)
        written = x.new_zeros(self.result(x.shape, cp)) if self.joined == "written" else None
        documents: list[Tensor] = []

        def document(start: Any, stop: Any) -> None:
            piece = x[start // cp : stop // cp] if self.to_heads else x[start:stop]
            step = cp if self.to_heads else 1
            moved = torch.cat([self._move(p, group) for p in piece.split([w * step for w in self.widths], 1)], 1)
            if self.after == "reversed":
                moved = moved.flip(0)
            if written is None:
                documents.append(moved)
            elif self.to_heads:
                written[start:stop] = moved
            else:
                written[start // cp : stop // cp] = moved

        if self.cut == "index":
            for i in range(len(cu) - 1):
                document(cu[i], cu[i + 1])
        elif self.cut == "zip":
            for start, stop in zip(cu[:-1], cu[1:]):  # noqa: B905, RUF007
                document(start, stop)
        else:
            for first, last in pairwise(cu.tolist()):
                document(first, last)
        return torch.cat(documents) if written is None else written

    def _move(self, part: Tensor, group: Any) -> Tensor:
        cp = dist.get_world_size(group)
        exchange = EXCHANGES[self.exchange]
        length, rest = part.shape[0], part.shape[2:]
        if self.to_heads:
            if self.send == "chunks":
                send = torch.stack(part.chunk(cp, 1))
            elif self.send == "below":
                send = torch.cat(part.chunk(cp, 1)).unflatten(0, (cp, length))
            else:
                send = part.unflatten(1, (cp, -1)).transpose(0, 1).contiguous()
            return self.order(exchange(send, group).flatten(0, 1), cp)
        send = self.order(part, cp).reshape(cp, length // cp, part.shape[1], *rest)
        received = exchange(send, group)
        if self.send == "chunks":
            return torch.cat(received.unbind(0), 1)
        return received.transpose(0, 1).flatten(1, 2)

    def shape(self, total: int, cp: int) -> tuple[int, ...]:
        """Of the tensor that one rank passes."""
        rest = () if self.heads is None else (self.heads,)
        return (total // cp, cp * sum(self.widths), *rest) if self.to_heads else (total, sum(self.widths), *rest)

    def result(self, shape: Any, cp: int) -> tuple[int, ...]:
        if self.to_heads:
            return (shape[0] * cp, shape[1] // cp, *shape[2:])
        return (shape[0] // cp, shape[1] * cp, *shape[2:])

    def batch(self, cp: int, count: int) -> tuple[Tensor, int]:
        """Boundaries and the row's length; a tail where the result has one too, or none is asked for."""
        numbers = random.Random(1000 * self.seed + count)
        head, tail = (cp * numbers.randint(0, 2) for _ in range(2))
        lengths = [2 * cp * numbers.choice((1, 1, 2, 3)) for _ in range(count)]
        cu = torch.tensor([head, *lengths], dtype=numbers.choice((torch.int32, torch.int64))).cumsum(0)
        cu = cu.to(torch.int32 if self.seed % 2 else torch.int64)
        return cu, int(cu[-1]) + tail

    def values(self, total: int, cp: int) -> Tensor:
        """Another one on every rank."""
        shape = self.shape(total, cp)
        if self.dtype.is_floating_point:
            return torch.randn(shape).to(self.dtype)
        return torch.randint(0, 2 if self.dtype is torch.bool else 100, shape).to(self.dtype)

    @property
    def differentiable(self) -> bool:
        return self.dtype.is_floating_point and self.exchange == "function"


def fuzzed(seed: int, broken: bool = False) -> Fuzzed:
    numbers = random.Random(seed)
    to_heads = numbers.random() < 0.6
    orders = UNDO if to_heads else REDO
    return Fuzzed(
        seed,
        to_heads,
        tuple(numbers.randint(1, 4) for _ in range(numbers.randint(1, 3))),
        numbers.choice((None, None, 2, 3)),
        numbers.choice(list(EXCHANGES)),
        numbers.choice(DTYPES),
        _shuffled(numbers) if broken else numbers.choice(orders),
        numbers.choice(("numbers", "index", "zip")),
        numbers.choice(("chunks", "below", "transposed")),
        numbers.choice(("cat", "cat", "written")),
        numbers.choice(("", "", "reversed")),
        broken,
    )


def _shuffled(numbers: random.Random) -> Order:
    """Two chunks of the right order exchanged, of either direction's right order."""
    right = numbers.choice((spelled.undo_by_chunks, spelled.redo_by_chunks))
    first, second = numbers.sample(range(4), 2)

    def order(y: Tensor, cp: int) -> Tensor:
        chunks = list(right(y, cp).chunk(2 * cp))
        chunks[first], chunks[second] = chunks[second], chunks[first]
        return torch.cat(chunks)

    return order
