"""Masks and positions that are filled in place, as statements: what is written there is part of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report

OPTIONS: dict[str, Any] = {"packpass.inner_backend": "eager", "packpass.isolate": True}
LENGTHS = ([9, 7, 4], [1, 2, 17], [5, 15], [20])
BUFFER = torch.zeros(64, 8)


def _attend(x: Tensor, mask: Tensor) -> Tensor:
    return ((x @ x.mT) / 3 + mask).softmax(-1) @ x


def mask_by_statement(x: Tensor) -> Tensor:
    length = x.shape[1]
    mask = torch.zeros(length, length)
    mask.masked_fill_(torch.ones(length, length, dtype=torch.bool).triu(1), float("-inf"))
    return _attend(x, mask)


def fused_attention_with_such_a_mask(x: Tensor) -> Tensor:
    length = x.shape[1]
    mask = torch.zeros(length, length)
    mask.masked_fill_(torch.ones(length, length, dtype=torch.bool).triu(1), float("-inf"))
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def fused_attention_with_a_mask_by_items(x: Tensor) -> Tensor:
    place = torch.arange(x.shape[1])
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
    mask[place[:, None] < place[None]] = False
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def first_tokens_for_all(x: Tensor) -> Tensor:
    place = torch.arange(x.shape[1])
    seen = place[:, None] - place[None] < 3
    seen[:, :2] = True
    seen = seen & (place[:, None] >= place[None])
    return ((x @ x.mT) / 3).masked_fill(~seen, float("-inf")).softmax(-1) @ x


def one_mask_for_two_layers(x: Tensor) -> Tensor:
    mask = torch.full((x.shape[1], x.shape[1]), float("-inf"))
    mask.triu_(1)
    mask[:, 0] = 0.0
    return _attend(_attend(x, mask), mask)


def mask_by_a_loop(x: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[1], x.shape[1])
    for i in range(x.shape[1]):
        mask[i, : i + 1] = 1.0
    return (x @ x.mT * mask) @ x


def sines(x: Tensor) -> Tensor:
    angles = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
    table = torch.zeros(x.shape[1], 8)
    table[:, 0::2] = torch.sin(angles)
    table[:, 1::2] = torch.cos(angles)
    return x + table


def copied_into_a_view(x: Tensor) -> Tensor:
    table = torch.zeros(x.shape[1], 8)
    table[:, 0::2].copy_(torch.arange(x.shape[1])[:, None].expand(-1, 4))
    return x + table


def counted_in_place(x: Tensor) -> Tensor:
    place = torch.arange(x.shape[1]).float()
    place.add_(1).mul_(0.1)
    return x * place[:, None]


def positions_outside_and_inside(x: Tensor) -> Tensor:
    table = torch.zeros(x.shape[1], 8)
    table[:, 1] = torch.arange(x.shape[1])
    return (x + table).cumsum(1) + table


def weights_without_positions(x: Tensor) -> Tensor:
    weights = torch.zeros(8)
    weights[::2] = 1.0
    return (x * weights).cumsum(1)


def inside_a_checkpoint(x: Tensor) -> Tensor:
    def part(y: Tensor) -> Tensor:
        weights = torch.zeros(8, 8)
        weights.masked_fill_(torch.ones(8, 8, dtype=torch.bool).tril(), 1.0)
        return y @ weights

    out: Tensor = checkpoint(part, x, use_reentrant=False)
    return out.cumsum(1)


def written_after_it_was_read(x: Tensor) -> Tensor:
    place = torch.zeros(x.shape[1])
    place += torch.arange(x.shape[1])
    y = x + place[:, None]
    place.mul_(2)
    return y + place[:, None]


def into_a_buffer(x: Tensor) -> Tensor:
    BUFFER[: x.shape[1]] = torch.arange(x.shape[1])[:, None].float()
    return x + BUFFER[: x.shape[1]]


def from_the_end(x: Tensor) -> Tensor:
    marks = torch.zeros(x.shape[1])
    marks[-3:] = 1.0
    return x + marks[:, None]


def into_what_is_given(x: Tensor) -> Tensor:
    place = torch.empty(x.shape[1], dtype=torch.int64)
    torch.arange(x.shape[1], out=place)
    return x + place[:, None]


def drawn_in_place(x: Tensor) -> Tensor:
    noise = torch.zeros(x.shape[1], x.shape[1])
    noise.normal_()
    return _attend(x, noise * 0)


STOPS = [
    mask_by_statement,
    fused_attention_with_such_a_mask,
    fused_attention_with_a_mask_by_items,
    first_tokens_for_all,
    one_mask_for_two_layers,
    mask_by_a_loop,
    sines,
    copied_into_a_view,
    counted_in_place,
    positions_outside_and_inside,
    weights_without_positions,
    inside_a_checkpoint,
]
REFUSED = {
    written_after_it_was_read: "in-place",
    into_a_buffer: "in-place",
    from_the_end: "mixes-documents",
    into_what_is_given: "mixes-documents",
    drawn_in_place: "mixes-documents",
}


def _run(function: Callable[[Tensor], Tensor], lengths: list[int], run: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What comes out of the packed row, of document by document and of the row without documents."""
    x = torch.randn(1, 20, 8, generator=torch.Generator().manual_seed(len(lengths)))
    got = run(x, torch.tensor([0, *lengths]).cumsum(0))
    return got, torch.cat([function(part) for part in x.split(lengths, 1)], 1), function(x)


def _compiled(function: Callable[[Tensor], Tensor]) -> Any:
    torch._dynamo.reset()
    return torch.compile(
        lambda x, cu: function(packpass.packed(x, cu, dim=1)), backend=packpass.backend, options=OPTIONS
    )


@pytest.mark.parametrize("function", STOPS)
def test_what_is_written_in_place_is_part_of_it(function: Callable[[Tensor], Tensor]) -> None:
    run, report = _compiled(function), Report()
    with collecting(report):
        for lengths in LENGTHS:
            got, alone, _ = _run(function, lengths, run)
            torch.testing.assert_close(got, alone, atol=1e-5, rtol=1e-5)
    assert report.rewrites
    assert not report.refusals


def test_a_mask_that_is_filled_at_the_boundaries_is_not_made_of_positions_alone() -> None:
    """It must not be made again for every document, as what is made of the row's length is."""

    def function(x: Tensor, cu: Tensor) -> Tensor:
        x = packpass.packed(x, cu, dim=1)
        starts = torch.zeros(x.shape[1], dtype=torch.int64)
        starts[cu[:-1]] = 1
        document = starts.cumsum(0)
        seen = document[:, None] == document[None]
        y: Tensor = ((x @ x.mT) / 3).masked_fill(~seen, float("-inf")).softmax(-1) @ x
        return y.cumsum(1)

    torch._dynamo.reset()
    run, report = torch.compile(function, backend=packpass.backend, options=OPTIONS), Report()
    x, cu = torch.randn(1, 20, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 9, 16, 20])
    with collecting(report):
        torch.testing.assert_close(run(x, cu), function(x, cu))
    assert [r.code for r in report.refusals] == ["mixes-documents"]


@pytest.mark.parametrize("function", REFUSED)
def test_is_refused_and_stays_as_it_is(function: Callable[[Tensor], Tensor]) -> None:
    run, report = _compiled(function), Report()
    with collecting(report):
        for lengths in LENGTHS[:2]:
            got, _, leaking = _run(function, lengths, run)
            torch.testing.assert_close(got, leaking)
    assert {r.code for r in report.refusals} == {REFUSED[function]}
    assert all("test_isolate_memory.py" in r.location for r in report.refusals)
    assert not report.rewrites
