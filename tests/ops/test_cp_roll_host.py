"""`cp_packed_roll` in host memory against the form that every device has; the ranks are threads of this process."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from packpass.ops import _cp_halo, _cp_packed_roll, _cp_roll_host
from tests.dist import naive
from tests.ops import reference

Arguments = tuple[Any, ...]


class Arrived:
    def wait(self) -> None:
        """All of it is there."""


class Ranks:
    """All-to-alls between threads: what every rank sends to every other one."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._sent: list[tuple[Tensor, list[int]]] = [(torch.empty(0), [])] * size
        self.bytes: dict[tuple[int, int], int] = {}

    def start(self, send: Tensor, sent: list[int], taken: list[int], rank: int) -> tuple[Tensor, Any]:
        self._sent[rank] = (send, sent)
        self._barrier.wait(20)
        parts = [piece.split(sizes)[rank] for piece, sizes in self._sent]
        for other, part in enumerate(parts):
            self.bytes[other, rank] = part.numel() * part.itemsize
        assert [len(part) for part in parts] == taken  # each sends what the other one expects
        received = torch.cat(parts)
        self._barrier.wait(20)
        return received, Arrived()

    def exchange(self, send: Tensor, rank: int, size: int) -> Tensor:
        flat = send.contiguous().view(size, -1)
        return self.start(flat, [1] * size, [1] * size, rank)[0].view(send.shape)

    def run(self, form: Callable[..., list[Tensor]], arguments: Callable[[int], Arguments]) -> list[list[Tensor]]:
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(lambda rank: form(*arguments(rank)), range(self.size)))


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Ranks]:
    """The name of a group is then the rank of the one that asks."""

    def made(size: int) -> Ranks:
        found = Ranks(size)
        monkeypatch.setattr(_cp_roll_host, "start", found.start)
        monkeypatch.setattr(_cp_halo, "exchange", found.exchange)
        return found

    assert _cp_roll_host.is_available()
    return made


def boundaries(numbers: random.Random, size: int, zigzag: bool, most: int) -> tuple[Tensor, int]:
    unit = size * (1 + zigzag)
    lengths = [unit * numbers.choice((0, numbers.randint(0, most))) for _ in range(numbers.randint(0, 6))]
    cu = torch.tensor([numbers.randint(0, 2) * size, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return cu, int(cu[-1]) + numbers.randint(0, 2) * size


DTYPES = [torch.int64, torch.bool, torch.bfloat16, torch.float32, torch.int16, torch.complex64, torch.float8_e4m3fn]
FILLS: dict[torch.dtype, list[Any]] = {torch.int64: [0, -100, 2**40], torch.bool: [False, True]}


def fields(numbers: random.Random, total: int) -> tuple[list[Tensor], list[int]]:
    """Whole rows of several dtypes and shapes, and where each is packed."""
    found, dims = [], []
    for _ in range(numbers.randint(1, 4)):
        shape, dim = numbers.choice([((total,), 0), ((1, total), 1), ((3, total), -1), ((total, 2, 3), 0)])
        shape, dim = numbers.choice([(shape, dim), ((2, total, 3), 1)])
        found.append(reference.sample(numbers.choice(DTYPES), *shape))
        dims.append(dim)
    return found, dims


def fill_for(numbers: random.Random, dtype: torch.dtype) -> Any:
    return numbers.choice(FILLS.get(dtype, [0, 1, -0.0] if dtype.is_floating_point else [0, 7]))


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("zigzag", [True, False], ids=["zigzag", "pieces"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_both_forms_and_the_definition(ranks: Callable[[int], Ranks], size: int, zigzag: bool) -> None:
    """Empty documents, shifts beyond chunks and documents, fills and wraps of one field, tails at both ends."""
    numbers = random.Random(10 * size + zigzag)
    for _ in range(25):
        cu, total = boundaries(numbers, size, zigzag, numbers.choice((1, 3, 9)))
        whole, dims = fields(numbers, total)
        reach = numbers.choice((1, 3, 20))
        count = numbers.randint(1, 6)
        of = [numbers.randrange(len(whole)) for _ in range(count)]
        shifts = [numbers.randint(-reach, reach) for _ in of]
        fills = [fill_for(numbers, whole[f].dtype) for f in of]
        wraps = [numbers.random() < 0.3 for _ in of]
        shards = [
            [naive.shard(w, cu.tolist(), size, rank, dim, zigzag=zigzag) for w, dim in zip(whole, dims, strict=True)]
            for rank in range(size)
        ]

        def arguments(rank: int, *cut: Any) -> Arguments:
            return (shards[rank], *cut, rank, size, rank, None, None, zigzag)  # noqa: B023

        given = (cu, of, shifts, dims, fills, wraps)
        host, tensors = (
            ranks(size).run(form, lambda rank: arguments(rank, *given))  # noqa: B023
            for form in (_cp_packed_roll._rolled_host, _cp_packed_roll._rolled)
        )
        for i, (f, k, fill, wrap) in enumerate(zip(of, shifts, fills, wraps, strict=True)):
            rolled = reference.roll(whole[f], cu, k, dims[f], None if wrap else fill)
            for rank in range(size):
                expected = naive.shard(rolled, cu.tolist(), size, rank, dims[f], zigzag=zigzag)
                assert torch.equal(bits(host[rank][i]), bits(expected)), (cu, total, whole[f].dtype, k, fill, wrap)
                assert torch.equal(bits(host[rank][i]), bits(tensors[rank][i]))
                assert host[rank][i].is_contiguous()


@pytest.mark.parametrize("zigzag", [True, False], ids=["zigzag", "pieces"])
@pytest.mark.parametrize("size", [2, 4])
def test_ends_that_one_rank_knows(ranks: Callable[[int], Ranks], size: int, zigzag: bool) -> None:
    """Rolls of some depths, each with fills that only the rank of the document's end knows, or by one around it."""
    numbers = random.Random(size)
    for n in range(40):
        cu, total = boundaries(numbers, size, zigzag, numbers.choice((1, 3, 9)))
        whole, dims = fields(numbers, total)
        sign, depth = numbers.choice((-1, 1)), numbers.randint(1, 5)
        around = zigzag and n % 3 == 0
        shifts = [sign] if around else [sign * d for d in range(1, depth + 1)]
        if n % 2:  # what is further outside than the shorter ones reach is known by a longer one
            shifts = sorted(numbers.sample(shifts, numbers.randint(1, len(shifts))), key=abs)
        rolls = [(f, k) for f in range(len(whole)) for k in shifts]
        of, ks = [f for f, _ in rolls], [k for _, k in rolls]
        known = [fill_for(numbers, whole[f].dtype) for f in of]
        wraps = [around and numbers.random() < 0.5 for _ in of]
        knows = 0 if zigzag or sign > 0 else size - 1

        def arguments(rank: int) -> Arguments:
            mine = [
                naive.shard(w, cu.tolist(), size, rank, dim, zigzag=zigzag)  # noqa: B023
                for w, dim in zip(whole, dims, strict=True)  # noqa: B023
            ]
            ends = (known, wraps) if rank == knows else ([1] * len(of), [False] * len(of))  # noqa: B023
            nothing = ([0] * len(of), [False] * len(of))  # noqa: B023
            return (mine, cu, of, ks, dims, *nothing, rank, size, rank, *ends, zigzag)  # noqa: B023

        host, tensors = (
            ranks(size).run(form, arguments) for form in (_cp_packed_roll._rolled_host, _cp_packed_roll._rolled)
        )
        for one, other in zip(host, tensors, strict=True):
            for a, b in zip(one, other, strict=True):
                assert torch.equal(bits(a), bits(b)), (cu, total, ks, known, wraps)
        for i, (f, k, fill, wrap) in enumerate(zip(of, ks, known, wraps, strict=True)):
            if len(shifts) == 1 and not wrap:
                rolled = reference.roll(whole[f], cu, k, dims[f], fill)
                for rank in range(size):
                    expected = naive.shard(rolled, cu.tolist(), size, rank, dims[f], zigzag=zigzag)
                    assert torch.equal(bits(host[rank][i]), bits(expected)), (cu, total, whole[f].dtype, k, fill)


def test_only_what_leaves_a_rank_travels(ranks: Callable[[int], Ranks]) -> None:
    """Two fields and three depths: of every chunk the slots that the neighbours' chunks roll in, once."""
    size, count = 4, 5
    cu = torch.arange(count + 1, dtype=torch.int32) * 2 * size * 6
    pool = ranks(size)
    xs = [torch.arange(6 * 2 * count), torch.ones(6 * 2 * count, 3)]
    rolls = ([0, 0, 0, 1], [-1, -2, -3, -1], [0, 0], [0] * 4, [False] * 4)
    pool.run(_cp_packed_roll._rolled_host, lambda rank: (xs, cu, *rolls, rank, size, rank, None, None, True))
    slots = count * (3 * 8 + 3 * 4)
    # Chunk c rolls in of chunk c + 1: ranks 0 1 2 3 3 2 1 0.
    assert pool.bytes == {(a, b): slots if abs(a - b) == 1 else 0 for a in range(size) for b in range(size)}


def test_without_a_compiler(ranks: Callable[[int], Ranks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cp_roll_host, "_native", lambda: None)
    cu, x = torch.tensor([0, 8, 24]), torch.arange(24)

    def arguments(rank: int) -> Arguments:
        shard = naive.shard(x, cu.tolist(), 2, rank)
        return ([shard], cu, [0], [-1], [0], [-7], [False], rank, 2, rank, None, None, True)

    for rank, (out,) in enumerate(ranks(2).run(_cp_packed_roll._rolled_host, arguments)):
        assert torch.equal(out, naive.shard(reference.roll(x, cu, -1, 0, -7), cu.tolist(), 2, rank))
