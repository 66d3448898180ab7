"""What a program raises in front of a loop over documents is an assertion in the graph; what else ends the graph there
is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass

from . import rewrite_checks


def two_lengths(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    if max(lengths) > 6:
        raise ValueError(f"a document of {max(lengths)} tokens")
    return torch.cat([part.flip(0) for part in x.split(lengths)])


def all_divide(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu[1:] - cu[:-1]
    if any(length % 2 for length in lengths):
        raise ValueError(f"lengths {lengths}")
    return torch.cat([x[cu[i] : cu[i + 1]].flip(0) for i in range(len(cu) - 1)])


def caught(x: Tensor, cu: Tensor) -> Tensor:
    """The program goes on with what it raises itself."""
    lengths = cu.diff().tolist()
    try:
        if max(lengths) > 6:
            raise ValueError
    except ValueError:
        x = x * 2
    return torch.cat([part.flip(0) for part in x.split(lengths)])


def doubled(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    if max(lengths) > 6:
        x = x * 2
    return torch.cat([part.flip(0) for part in x.split(lengths)])


def first_of_rows(x: Tensor, numbers: Tensor) -> Tensor:
    """Of rows of another width than those that they go to, so that no one number of slots is meant."""
    out = x.new_zeros(len(x), 12)
    for i, n in enumerate(numbers.tolist()):
        k = min(n, 4)
        out[i, :k] = x[i, :k]
    return out


def behind_the_first(x: Tensor, cu: Tensor) -> Tensor:
    """Eager raises for a document without slots: its numbers would end before they start."""
    return x[torch.cat([torch.arange(s + 1, e) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])]


def printed(x: Tensor, cu: Tensor) -> Tensor:
    lengths, parts, start = cu.diff().tolist(), [], 0
    torch._dynamo.graph_break()
    for n in lengths:
        parts.append(x[start : start + n].flip(0))
        start += n
    return torch.cat(parts)


def only_printed(x: Tensor, cu: Tensor) -> Any:
    lengths = cu.diff().tolist()
    torch._dynamo.graph_break()
    return x * 2, lengths


EAGER: Any = {"options": {"packpass.inner_backend": "eager"}}
FITTING, TOO_LONG = torch.tensor([0, 3, 8, 10]), torch.tensor([0, 1, 9, 10])


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_raises_where_eager_does(inner: str) -> None:
    compiled = torch.compile(two_lengths, backend=packpass.backend, options={"packpass.inner_backend": inner})
    x = torch.randn(10)
    assert torch.equal(compiled(x, FITTING), two_lengths(x, FITTING))
    with pytest.raises(RuntimeError, match=r"test_checks.py:\d+: its condition holds"):
        compiled(x, TOO_LONG)
    assert torch.equal(compiled(x, FITTING), two_lengths(x, FITTING))


def test_any_of_tensors_is_asked() -> None:
    """What goes through a generator leaves nothing of it: whoever looks next would find no document."""
    compiled = torch.compile(all_divide, backend=packpass.backend, **EAGER)
    x, even = torch.randn(10), torch.tensor([0, 4, 8, 10])
    assert torch.equal(compiled(x, even), all_divide(x, even))
    with pytest.raises((RuntimeError, ValueError)):
        compiled(x, FITTING)


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_raises_in_the_body(inner: str) -> None:
    program: Any = rewrite_checks.raise_in_the_body
    compiled = torch.compile(program, backend=packpass.backend, options={"packpass.inner_backend": inner})
    x, beyond = torch.randn(10), torch.tensor([0, 3, 8, 12])
    assert torch.equal(compiled(x, FITTING), program(x, FITTING))
    with pytest.raises((RuntimeError, ValueError)):
        compiled(x, beyond)


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_raises_for_a_document_with_too_few_slots(inner: str) -> None:
    compiled = torch.compile(behind_the_first, backend=packpass.backend, options={"packpass.inner_backend": inner})
    x, empty = torch.randn(10), torch.tensor([0, 4, 4, 10])
    assert torch.equal(compiled(x, FITTING), behind_the_first(x, FITTING))
    for run in (behind_the_first, compiled):
        with pytest.raises(RuntimeError, match="before it starts|inconsistent with step sign"):
            run(x, empty)
    assert [r.rule for r in packpass.explain(behind_the_first, **EAGER)(x, FITTING).rewrites] == ["vectorize_segments"]


def test_a_number_below_zero_is_said_where_one_for_two_widths_is_meant() -> None:
    """Where the rows are as wide as each other, it counts from their end, as in eager."""
    compiled = torch.compile(first_of_rows, backend=packpass.backend, **EAGER)
    x, numbers = torch.randn(3, 8), torch.tensor([3, 0, 9])
    assert torch.equal(compiled(x, numbers), first_of_rows(x, numbers))
    with pytest.raises(RuntimeError, match="ends at a negative number, which Python counts from the end"):
        compiled(x, torch.tensor([3, -1, 9]))


@pytest.mark.parametrize("program", [caught, doubled, printed])
def test_a_graph_that_ends_in_front_of_the_loop_is_said(program: Callable[..., Any]) -> None:
    x = torch.randn(10)
    for cu in (FITTING, TOO_LONG):
        report = packpass.explain(program, **EAGER)(x, cu)
        assert torch.equal(report.result, program(x, cu))
        assert not report.rewrites
        assert [r for r in report.refusals if "test_checks.py" in r.location]


def test_numbers_that_no_loop_goes_over_need_not_be_said() -> None:
    report = packpass.explain(only_printed, **EAGER)(torch.randn(10), FITTING)
    assert report.result[1] == [3, 5, 2]
    assert not report.refusals
