"""Rows of many documents, of which several are changed together: places, sources and the number of runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import packpass
from packpass.probing.documents import Documents, from_boundaries
from tests.leaks.planted import CLEAN, CU, LEAKING, T, planted_lines, row

MANY = torch.tensor([0, 2, 5, 7, 9, 12, 14, 16, 18, 20, 22, 24])


@pytest.mark.parametrize("program", LEAKING, ids=lambda p: p.__name__)
def test_every_leak_is_found_at_its_line(program: Callable[..., Any]) -> None:
    found = packpass.audit(program)(row(), MANY)
    assert not found.clean
    assert {int(leak.location.rpartition(":")[2]) for leak in found.leaks} == planted_lines(program), str(found)
    assert all(leak.source_document in (0, 5, 10) and leak.seen_by and leak.distance for leak in found.leaks)


@pytest.mark.parametrize(
    "program",
    [p for p in CLEAN if p.__name__ not in ("per_document", "convolution_by_document")],
    ids=lambda p: p.__name__,
)
def test_no_false_alarm(program: Callable[..., Any]) -> None:
    assert packpass.audit(program)(row(1), MANY).clean


def test_sources_and_distances_are_those_of_one_document_alone() -> None:
    def both_ways(x: Tensor, cu_seqlens: Tensor) -> Tensor:
        later = torch.roll(x, 1, 1) * torch.ones(T).index_fill(0, torch.tensor(0), 0.0)[:, None]
        earlier = F.pad(x[:, 1:], (0, 0, 0, 1))
        return x + later + earlier

    found = {leak.operation: leak for leak in packpass.audit(both_ways)(row(), MANY).leaks}
    assert (found["roll"].source_document, found["roll"].seen_by) == (0, (1,))
    assert found["roll"].distance == "the next slot"
    (padded,) = [leak for name, leak in found.items() if name != "roll"]
    assert (padded.source_document, padded.seen_by, padded.distance) == (5, (4,), "the previous slot")


def test_documents_that_are_changed_together_and_see_each_other_only() -> None:
    """The first sees the last, which is changed with it."""

    def first_sees_last(x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return torch.cat([x[:, :1] + x[:, -1:], x[:, 1:]], 1)

    found = packpass.audit(first_sees_last)(row(), MANY)
    assert {(leak.source_document, leak.seen_by) for leak in found.leaks} == {(10, (0,))}
    assert all(leak.location != "<not located>" for leak in found.leaks)


def test_what_mixes_and_reaches_no_output_is_not_blamed() -> None:
    def masked(x: Tensor, cu_seqlens: Tensor) -> Tensor:
        dropped = F.pad(x, (0, 0, 1, 0))[:, :-1] * 0.0  # its leak is taken away
        kept = torch.roll(x, 1, 1)
        return x + dropped + kept

    found = packpass.audit(masked)(row(), MANY)
    assert [leak.operation for leak in found.leaks] == ["roll"], str(found)


def test_many_places_cost_few_runs() -> None:
    def places(x: Tensor, cu_seqlens: Tensor) -> Tensor:
        a = x + torch.roll(x, 1, 1)
        b = a + F.pad(a, (0, 0, 1, 0))[:, :-1]
        c = b + b.cumsum(1)
        return c + c.flip(1)

    few = packpass.audit(places, MANY)(row(), MANY)
    assert len(few.leaks) == 4
    # As it is, one document, again; followed together; what each place lets through; gradients.
    assert few.runs == 6


def test_labels_of_several_documents() -> None:
    documents = Documents(from_boundaries(CU, T), "")
    base, other = torch.zeros(T, 2), torch.zeros(T, 2)
    other[:7], other[15:] = 1.0, float("nan")
    assert documents.hit(base, other, frozenset((1, 3))) is None
    hit = documents.hit(base, other, 1)
    assert hit is not None
    assert hit.documents == (3,)
    assert documents.hit(other, other.clone(), 2) is None  # NaN is NaN
