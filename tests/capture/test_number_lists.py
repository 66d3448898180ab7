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


# === Lists of tensors ========================================================================================


def parts(*lengths: int) -> list[Tensor]:
    return [torch.randn(n, 3) for n in lengths]


def summed(parts: Any) -> Tensor:
    return torch.stack([part.sum(0) for part in parts])


def test_a_graph_for_all_lists_of_tensors() -> None:
    run = Compiled(summed)
    for lengths in ([3, 5], [4, 4, 2], [6, 1, 1, 7], [2, 2], [5] * 40):
        run(parts(*lengths))
    assert run.graphs == 1
    assert run.report.rewrites
    assert not run.report.refusals


def test_as_many_tensors_of_one_shape_stay_as_they_are() -> None:
    def largest(parts: Any) -> Tensor:
        return torch.stack([part.amax(0) for part in parts])

    run = Compiled(largest)
    for n in (3, 5, 3):
        run(parts(n, n, n))
    assert not run.report.rewrites
    assert not run.report.refusals


def patches(images: list[Tensor]) -> Tensor:
    out = []
    for image in images:
        c, h, w = image.shape
        cut = image.view(c, h // 2, 2, w // 2, 2).permute(1, 3, 2, 4, 0)
        out.append(cut.reshape(h // 2 * (w // 2), 4 * c))
    return torch.cat(out)


def test_images_of_several_sizes() -> None:
    """They may be levels of features, too, of which there are always as many; seen at the second batch."""
    run = Compiled(patches)
    for sizes in ([(2, 4), (4, 2)], [(4, 4), (2, 2), (6, 2)], [(8, 2)], [(2, 2), (2, 6)], [(4, 6)] * 5):
        run([torch.randn(3, h, w) for h, w in sizes])
    assert any(rewrite.rule == "ragged_grids" for rewrite in run.report.rewrites)
    assert run.graphs == 3  # one of them for a single image


ANOTHER: dict[str, Callable[[], Any]] = {
    "one tensor": lambda: parts(4),
    "one slot": lambda: parts(1),
    "a tuple": lambda: tuple(parts(2, 3, 4)),
    "other features": lambda: [torch.randn(n, 5) for n in (2, 3)],
    "doubles": lambda: [part.double() for part in parts(2, 3, 4)],
    "other ranks": lambda: [torch.randn(2, 3), torch.randn(3, 2, 3).sum(0)],
    "gradients": lambda: [part.requires_grad_() for part in parts(2, 3, 4)],
    "a gradient": lambda: [part.requires_grad_(i == 1) for i, part in enumerate(parts(2, 3, 4))],
    "parameters": lambda: [torch.nn.Parameter(part) for part in parts(2, 3)],
    "columns": lambda: [part.t().contiguous().t() for part in parts(2, 3, 4)],
    "a tensor": lambda: torch.randn(4, 2, 3),
}


@pytest.mark.parametrize("make", ANOTHER.values(), ids=ANOTHER)
def test_other_lists_of_tensors_behind_the_first(make: Callable[[], Any]) -> None:
    run = Compiled(summed)
    for given in (parts(3, 5), make(), parts(2, 1, 2), make()):
        run(given)


def multiplied(first: list[Tensor], second: list[Tensor]) -> Tensor:
    return torch.cat([a * b for a, b in zip(first, second)])


def test_two_lists_of_other_lengths() -> None:
    """Documents of one slot are taken for as many as the other list has."""
    run = Compiled(multiplied)
    for first, second in (((3, 5), (3, 5)), ((2, 2, 4), (2, 2, 4)), ((3, 1), (3, 4)), ((1, 1, 2), (5, 1, 2))):
        run(parts(*first), parts(*second))


def test_gradients_reach_the_tensors() -> None:
    run = torch.compile(summed, backend=packpass.backend, options={"packpass.inner_backend": "aot_eager"})
    for lengths in ([3, 5], [2, 2, 4]):
        given = [part.requires_grad_() for part in parts(*lengths)]
        (run(given) * torch.arange(3.0)).sum().backward()
        for part in given:
            torch.testing.assert_close(part.grad, torch.arange(3.0).expand_as(part))


def test_what_is_done_to_the_callers_tensors_is_refused() -> None:
    def scaled(parts: list[Tensor]) -> Tensor:
        for part in parts:
            part *= 2
        return torch.cat(parts)

    def first(parts: list[Tensor]) -> Any:
        return parts[0], torch.cat([part * 2 for part in parts])

    for program in (scaled, first):
        run = Compiled(program)
        for lengths in ([3, 5], [2, 2, 4]):
            given = parts(*lengths)
            same = [part.clone() for part in given]
            with collecting(run.report):
                torch.testing.assert_close(run.run(given), program(same))
            torch.testing.assert_close(given, same)
        assert "outer-tensor-write" in {refusal.code for refusal in run.report.refusals}
        assert not run.report.rewrites


def test_views_of_what_is_written_to() -> None:
    def zeroed(row: Tensor, parts: list[Tensor]) -> Tensor:
        row.zero_()
        return torch.stack([part.sum(0) for part in parts])

    run = Compiled(zeroed)
    for lengths in ([3, 5], [2, 2, 4]):
        row = torch.randn(sum(lengths), 3)
        assert not run.run(row, list(row.split(lengths))).any()


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


def test_what_every_document_goes_over_is_no_list_of_documents() -> None:
    """Widths of another layer, in other numbers: the code is the same, so that they seem to change from batch to
    batch."""

    def of(widths: tuple[int, ...]) -> Callable[..., Any]:
        def program(x: Tensor, cu: Tensor) -> Tensor:
            out = []
            for s, e in zip(cu[:-1], cu[1:]):
                parts = x[s:e].split([w * 2 for w in widths], 1)
                out.append(torch.cat([part.softmax(0) for part in parts], 1))
            return torch.cat(out)

        return program

    for widths in ((2, 3), (4, 3, 4), (1, 5)):
        run = Compiled(of(widths))
        for cu in ((0, 3, 8, 12), (0, 2, 4, 9, 10), (0, 4, 6)):
            run(torch.randn(cu[-1], 2 * sum(widths)), torch.tensor(cu))
        assert run.report.rewrites
        assert not run.report.refusals
        assert run.graphs <= 2
