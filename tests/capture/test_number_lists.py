"""Lists of numbers that a program is given: sequences over documents, whatever else the program is given next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import packpass
from packpass.decisions.records import collecting


class Compiled:
    """A program and its rewrites; every call is held against eager."""

    def __init__(self, program: Callable[..., Any]) -> None:
        torch._dynamo.reset()
        counters.clear()
        self.program, self.report = program, packpass.Report()
        self.run = torch.compile(program, backend=packpass.backend, options={"packpass.inner_backend": "eager"})

    @property
    def graphs(self) -> int:
        return counters["stats"]["unique_graphs"]

    def __call__(self, *args: Any) -> None:
        with collecting(self.report):
            torch.testing.assert_close(self.run(*args), self.program(*args))


def centred(x: Tensor, lengths: Any) -> Tensor:
    return torch.cat([part - part.mean(0) for part in x.split(lengths)])


def weighed(x: Tensor, lengths: list[int], weights: list[int], more: list[int]) -> Tensor:
    parts = zip(x.split(lengths), weights, more)
    return torch.cat([part * weight + other for part, weight, other in parts])


def x(*lengths: int) -> Tensor:
    return torch.randn(sum(lengths), 3)


def test_a_graph_for_all_lists() -> None:
    run = Compiled(centred)
    for lengths in ([3, 5], [4, 4, 2], [6, 1, 1, 7], [2, 2], [5] * 40):
        run(x(*lengths), lengths)
    assert run.graphs == 2
    assert run.report.rewrites
    assert not run.report.refusals


def test_several_lists_are_not_each_others_memory() -> None:
    """The tensors that guards make of them are gone at once, and the next may lie where the last one was."""
    run = Compiled(weighed)
    for n in (2, 3, 5, 4, 2, 3):
        lengths = [n + i for i in range(n)]
        for _ in range(5):
            run(x(*lengths), lengths, list(range(n)), list(range(n, 2 * n)))
    assert run.graphs == 2


OTHERS: dict[str, Any] = {
    "a tuple": (3, 5, 2),
    "one document": [10],
    "a document without slots": [4, 0, 6],
    "numbers of another type": [torch.tensor(3), torch.tensor(7)],
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_other_lists_behind_the_first(other: Any) -> None:
    run = Compiled(centred)
    for lengths in ([3, 5, 2], other, [1, 2, 7], other):
        run(x(10), lengths)


def no_parts(x: Tensor, lengths: Any) -> Tensor:
    out, start = [x[:0]], 0
    for n in lengths:
        out.append(x[start : start + n].flip(0))
        start += n
    return torch.cat(out)


def test_no_documents_and_tensors_in_the_place_of_a_list() -> None:
    run = Compiled(no_parts)
    for lengths in ([3, 5, 2], [], torch.tensor([4, 6]), [2, 8], [True, True, 3]):
        run(x(10), lengths)


def test_lengths_that_do_not_fit_are_an_error() -> None:
    run = Compiled(centred)
    run(x(3, 5), [3, 5])
    run(x(2, 3, 4), [2, 3, 4])
    with pytest.raises((RuntimeError, torch._dynamo.exc.TorchRuntimeError), match="fill the packed dimension"):
        run.run(x(9), [2, 3])


def test_a_list_that_is_written_to_stays_the_callers() -> None:
    def emptied(x: Tensor, lengths: list[int]) -> Tensor:
        out = centred(x, lengths)
        lengths.clear()
        return out

    run = Compiled(emptied)
    for lengths in ([3, 5], [4, 2, 1]):
        given = list(lengths)
        torch.testing.assert_close(run.run(row := x(*lengths), given), centred(row, lengths))
        assert given == []


def test_settings_are_constants() -> None:
    class Model(torch.nn.Module):
        widths = (4, 6)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([part.cumsum(0) for part in x.split(self.widths)])

    run = Compiled(Model())
    for _ in range(2):
        run(x(4, 6))
    assert run.graphs == 1
    assert not run.report.rewrites
    assert not run.report.refusals
