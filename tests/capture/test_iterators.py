"""Iterators and generators from outside of a loop over documents carry a position from one document to the next."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from .support import boundaries, compiled, equal, hold, reported, row

Make = Callable[[], Any]
Take = Callable[[Any], int]


def numbers() -> Iterator[int]:
    yield from range(1, 30)


def first_of_loop(iterator: Any) -> int:
    for number in iterator:
        return int(number)
    return 0


def through_another(iterator: Any) -> int:
    def again() -> Iterator[int]:
        yield from iterator

    return next(again())


def handed_on(iterator: Any) -> Iterator[int]:
    """Gone through to its end: torch 2.15 cannot close what is left of a ``yield from``."""
    yield from iterator


MADE: dict[str, Make] = {
    "list": lambda: iter([1, 2, 3, 4, 5, 6, 7, 8, 9]),
    "expression": lambda: (number for number in [1, 2, 3, 4, 5, 6, 7]),
    "count": lambda: itertools.count(1),
    "keys": lambda: iter({1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7}),
    "generator": numbers,
}
TAKEN: dict[str, Take] = {
    "next": next,
    "loop": first_of_loop,
    "iter": lambda iterator: next(iter(iterator)),
    "handed on": lambda iterator: next((lambda: iterator)()),
    "yield from": through_another,
    "in": lambda iterator: 2 if 1 in iterator else 3,
    "unpacked": lambda iterator: len([*itertools.islice(iterator, 2)]),
}


# Closing what "yield from" has made closes a generator behind it; an endless iterator may be searched for ever.
NEVER = {("expression", "yield from"), ("generator", "yield from"), ("count", "in")}


@pytest.mark.parametrize(("made", "taken"), [pair for pair in itertools.product(MADE, TAKEN) if pair not in NEVER])
def test_one_from_outside_is_refused(made: str, taken: str) -> None:
    def program(x: Tensor, cu: Tensor) -> Tensor:
        out, iterator = x.clone(), MADE[made]()
        for s, e in zip(cu[:-1], cu[1:]):
            out[:, s:e] *= TAKEN[taken](iterator)
        return out

    report = reported(program, row(), boundaries(4))
    equal(program(row(), boundaries(4)), report.result)
    assert not report.rewrites
    assert report.refusals


def test_those_of_the_body_are_its_own() -> None:
    def program(x: Tensor, cu: Tensor) -> Tensor:
        out = x.clone()
        for s, e in zip(cu[:-1], cu[1:]):
            for factor in (number for number in (1, 2)):
                out[:, s:e] *= factor
            fresh = iter([2, 3])
            out[:, s:e] += next(fresh) + sum(number for number in range(2)) + sum(handed_on(iter([5])))
        return out

    report = reported(program, row(), boundaries(4))
    assert [r.rule for r in report.rewrites] == ["vectorize_segments"]
    assert not report.refusals
    hold(program, compiled(program, fullgraph=True), [3, 7, 1, 20])


def test_a_list_that_is_a_default_of_a_function() -> None:
    def remember(part: Tensor, memory: list[int] = []) -> Tensor:  # noqa: B006
        memory.append(1)
        return part * len(memory)

    def program(x: Tensor, cu: Tensor) -> Tensor:
        out = x.clone()
        for s, e in zip(cu[:-1], cu[1:]):
            out[:, s:e] = remember(x[:, s:e])
        return out

    wanted = program(row(), boundaries(4))
    remember.__defaults__[0].clear()  # type: ignore[index]
    report = reported(program, row(), boundaries(4))
    assert torch.equal(report.result, wanted)
    assert not report.rewrites
