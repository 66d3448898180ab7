"""What a loop leaves where a branch decides: numbers that stay numbers, lists that may be empty, and all documents
without tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import packpass

from .compiling import fresh
from .harness import flatten, same

LENGTHS = ([3, 0, 5, 2], [0, 4, 0, 1, 6, 0], [7], [0, 0, 0], [2, 3, 4, 1])


def spans(cu: Tensor) -> Any:
    return zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)


def number_that_becomes_a_tensor(x: Tensor, cu: Tensor) -> Any:
    """0.0 where no document has tokens, as in eager."""
    total = 0.0
    for s, e in spans(cu):
        if e - s == 0:
            continue
        total = total + x[s:e].mean()
    return total


def mean_from_a_number(x: Tensor, cu: Tensor) -> Any:
    total, count = 0, 0
    for s, e in spans(cu):
        n = e - s
        if n > 0:
            total += x[s:e].pow(2).mean()
            count += 1
    return total / max(count, 1)


def tensor_of_another_shape(x: Tensor, cu: Tensor) -> Any:
    total = x.new_zeros(())
    wide = x[:, None] * x.new_tensor([1.0, 2.0])
    for s, e in spans(cu):
        if e == s:
            continue
        total = total + wide[s:e].sum(0)
    return total, total.dim()


def counter_in_a_branch(x: Tensor, cu: Tensor) -> Any:
    total, count = x.new_zeros(()), 0
    for s, e in spans(cu):
        if e == s:
            continue
        total = total + x[s:e].mean()
        count += 1
    return total / count if count > 0 else x.sum() * 0


def list_that_may_be_empty(x: Tensor, cu: Tensor) -> Any:
    losses = []
    for s, e in spans(cu):
        if e == s:
            continue
        losses.append(x[s:e].pow(2).mean())
    return torch.stack(losses).mean() if losses else x.sum() * 0


def list_that_is_asked_for_its_length(x: Tensor, cu: Tensor) -> Any:
    losses = []
    for s, e in spans(cu):
        if e > s:
            losses.append(x[s:e].mean())
    if len(losses) == 0:
        return x.new_zeros(())
    losses.append(x.sum())
    return sum(losses) / len(losses)


def sum_of_a_list_that_may_be_empty(x: Tensor, cu: Tensor) -> Any:
    losses = []
    for s, e in spans(cu):
        if e == s:
            continue
        losses.append(x[s:e].mean())
    return sum(losses) / max(len(losses), 1)


PROGRAMS = (
    number_that_becomes_a_tensor,
    mean_from_a_number,
    tensor_of_another_shape,
    counter_in_a_branch,
    list_that_may_be_empty,
    list_that_is_asked_for_its_length,
    sum_of_a_list_that_may_be_empty,
)


def outcome(fn: Callable[..., Any], lengths: list[int]) -> tuple[list[Any], Tensor]:
    """Results, and the gradient that they give the row, which goes on behind the documents."""
    torch.manual_seed(0)
    x = torch.randn(sum(lengths) + 4, requires_grad=True)
    results = fn(x, torch.tensor([0, *lengths]).cumsum(0))
    found = [value for _, value in flatten(results)]
    (sum(v.sum() for v in found if isinstance(v, Tensor)) + x.sum() * 0).backward()
    assert x.grad is not None
    return found, x.grad


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_the_documents_leave(program: Callable[..., Any]) -> None:
    fresh()
    fn = torch.compile(program, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    for lengths in LENGTHS:
        wants, want = outcome(program, lengths)
        gots, got = outcome(fn, lengths)
        for a, b in zip(wants, gots, strict=True):
            same(f"{program.__name__} {lengths}", a, b, exact=False)
        same(f"gradient of {program.__name__} {lengths}", want, got, exact=False)
    assert counters["packpass"]["rewrite:vectorize_segments"] >= 1
    assert not [key for key in counters["packpass"] if key.startswith("refusal")]


def _offset(x: Tensor, cu: Tensor, start: int) -> Tensor:
    out = []
    for n in cu.diff().tolist():
        out.append(x[start : start + n].flip(0))
        start += n
    return torch.cat(out)


def _last_end(x: Tensor, cu: Tensor, start: int) -> Tensor:
    out = []
    for end in cu[1:].tolist():
        out.append(x[start:end].flip(0))
        start = end
    return torch.cat(out)


def _counter(x: Tensor, cu: Tensor, count: int) -> Tensor:
    total = x.new_zeros(())
    for i in range(len(cu) - 1):
        total = total + x[cu[i] : cu[i + 1]].sum()
        count += 1
    return total / count


@pytest.mark.parametrize("program", [_offset, _last_end, _counter])
def test_what_a_local_begins_with_is_guarded(program: Any) -> None:
    """Another number for the argument is another program."""
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    x, cu = torch.arange(9.0), torch.tensor([0, 3, 5, 8])
    for start in (0, 2, 1, 0):
        torch.testing.assert_close(compiled(x, cu, start), program(x, cu, start), rtol=0, atol=0)
