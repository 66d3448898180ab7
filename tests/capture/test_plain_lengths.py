"""Lengths of documents as numbers of Python: said where they cost a graph for every batch, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass.decisions.records import collecting

CODE = "python-lengths"


def said(program: Callable[..., Any], *batches: tuple[Any, ...], **options: Any) -> list[packpass.Refusal]:
    torch._dynamo.reset()
    report = packpass.Report()
    settings = {"packpass.inner_backend": "eager", **options}
    compiled = torch.compile(program, backend=packpass.backend, options=settings)
    for batch in batches:
        with collecting(report):
            torch.testing.assert_close(compiled(*batch), program(*batch))
    return [refusal for refusal in report.refusals if refusal.code == CODE]


def centred(x: Tensor, lengths: list[int]) -> Tensor:
    """What no graph can do for every list of lengths: put documents in order of them."""
    return torch.cat([part - part.mean(0) for part in x.split(sorted(lengths))])


def by_boundaries(x: Tensor, cu: tuple[int, ...]) -> Tensor:
    return torch.cat([x[a:b] - x[a:b].mean(0) for a, b in sorted(zip(cu, cu[1:]))])


def by_sizes(x: Tensor, grid: list[list[int]]) -> Tensor:
    return torch.cat([part - part.mean(0) for part in x.split(sorted(t * h * w for t, h, w in grid))])


def by_pixels(x: Tensor, sizes: list[tuple[int, int]]) -> Tensor:
    return torch.cat([part - part.mean(0) for part in x.split(sorted(h // 4 * (w // 4) for h, w in sizes))])


def in_a_batch(x: Tensor, batch: dict[str, Any]) -> Tensor:
    return centred(x, batch["lengths"])


def first_of_rows(x: Tensor, counts: list[int]) -> Tensor:
    return torch.stack([row[:n].sum() for row, n in zip(x, sorted(counts))])


X = torch.randn(24, 3)
BATCHES: dict[Callable[..., Any], list[tuple[Any, ...]]] = {
    centred: [(X, [4, 20]), (X[:9], [2, 3, 4])],
    by_boundaries: [(X, (0, 4, 24)), (X[:9], (0, 2, 5, 9))],
    by_sizes: [(X, [[1, 2, 2], [2, 5, 2]]), (X[:9], [[1, 3, 3]])],
    by_pixels: [(X, [(16, 16), (8, 16)]), (X[:9], [(12, 12)])],
    in_a_batch: [(X, {"lengths": [4, 20]}), (X[:9], {"lengths": [2, 3, 4]})],
    first_of_rows: [(X[:2], [1, 3]), (X[:4], [2, 0, 2, 1])],
}
NAMES = {centred: "'lengths'", by_boundaries: "'cu'", by_sizes: "'grid'", in_a_batch: "batch['lengths']"}
NAMES[by_pixels] = "'sizes'"
NAMES[first_of_rows] = "'counts'"


@pytest.mark.parametrize("program", BATCHES, ids=lambda f: f.__name__)
def test_said_at_the_second_batch(program: Callable[..., Any]) -> None:
    first, second = BATCHES[program]
    (found,) = said(program, first, second)
    assert NAMES[program] in found.reason
    assert ".tolist()" in found.reason
    assert found.location.startswith("tests/capture/test_plain_lengths.py:")


def test_not_at_the_first() -> None:
    assert not said(by_lengths_of_its_own, (X, [4, 20]))


def by_lengths_of_its_own(x: Tensor, lengths: list[int]) -> Tensor:
    return torch.cat([part * 2 for part in x.split(lengths)])


def test_not_where_any_list_is_one_graph() -> None:
    def by_lengths(x: Tensor, lengths: list[int]) -> Tensor:
        return torch.cat([part - part.mean(0) for part in x.split(lengths)])

    assert not said(by_lengths, *BATCHES[centred])


def test_not_of_widths() -> None:
    """A list that stays the same costs no graphs."""

    def heads(x: Tensor, widths: list[int]) -> Tensor:
        q, k = x.split(widths, dim=1)
        return q.sum(1) * k.sum(1)

    assert not said(heads, (X, [1, 2]), (X[:9], [1, 2]), (X[:5], [1, 2]))


def test_not_of_other_numbers() -> None:
    def scaled(x: Tensor, factors: list[int]) -> Tensor:
        return x * factors[0] + factors[1]

    assert not said(scaled, (X, [2, 5]), (X, [7, 5]), (X[:9], [100, 1]))


def test_not_of_sizes_of_something_else() -> None:
    def scaled(x: Tensor, sizes: list[tuple[int, int]]) -> Tensor:
        return torch.cat([x * h / w for h, w in sizes])

    assert not said(scaled, (X, [(5, 7), (3, 4)]), (X, [(6, 7), (3, 5)]))


def test_not_of_tensors() -> None:
    def by_tensor(x: Tensor, lengths: Tensor) -> Tensor:
        return torch.cat([part - part.mean(0) for part in x.split(lengths.tolist())])

    assert not said(by_tensor, (X, torch.tensor([4, 20])), (X[:9], torch.tensor([2, 3, 4])))


def test_jagged_tensors_are_no_trouble() -> None:
    def doubled(nested: Tensor, lengths: list[int]) -> Tensor:
        return nested.values() * len(lengths)

    rows = [torch.nested.nested_tensor([X[:n], X[n:]], layout=torch.jagged) for n in (4, 7)]
    assert not said(doubled, (rows[0], [4, 20]), (rows[1], [7, 17]))


def collated(parts: list[Tensor]) -> Tensor:
    """The first of them goes another way, which no list of documents does."""
    return torch.cat([parts[0], *[part - part.mean(0) for part in parts[1:-1]], parts[-1] * 2])


def test_a_list_of_tensors() -> None:
    first, second = [X[:4], X[4:]], [X[:2], X[2:5], X[5:]]
    (found,) = said(collated, (first,), (second,))
    assert "'parts'" in found.reason
    assert "one row and its boundaries" in found.reason


def test_not_of_as_many_tensors() -> None:
    def joined(parts: list[Tensor]) -> Tensor:
        return torch.cat([part * 2 for part in parts])

    assert not said(joined, ([X[:4], X[4:]],), ([X[:9], X[9:]],))


def test_not_of_what_a_wrapper_passes_on() -> None:
    """It takes the arguments of several functions, some with more tensors than others."""

    def wrapper(*args: Tensor) -> Tensor:
        return torch.cat([part * 2 for part in args])

    assert not said(wrapper, (X[:4], X[4:]), (X[:2], X[2:5], X[5:]))


def test_not_where_loops_are_not_looked_for() -> None:
    assert not said(centred, *BATCHES[centred], **{"packpass.symbolic_loops": False})
