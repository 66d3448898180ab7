"""Branches on the length of a row that a loop over documents has made (`packpass.capture.short_circuits`), and ops that
ask whether it is empty (`packpass.capture.fakes`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

import packpass

OPTIONS = {"packpass.inner_backend": "eager"}
SIZES = (((2, 3), (1, 4), (3, 3)), ((1, 1), (4, 2), (2, 2), (3, 1), (1, 2)), ((4, 4), (1, 3)))


def arguments(sizes: Any) -> tuple[Tensor, Tensor]:
    torch.manual_seed(len(sizes))
    return torch.randn(len(sizes), 8, 4, 4), torch.tensor(sizes)


def row(x: Tensor, sizes: Tensor) -> Tensor:
    return torch.cat([image[..., :h, :w].flatten(1).T for image, (h, w) in zip(x, sizes.tolist())])


def with_a_mask(x: Tensor, sizes: Tensor, mask: Any = 1) -> Tensor:
    made = row(x, sizes)
    is_causal = made.shape[0] > 1 and mask is None and True
    return made.cumsum(0) if is_causal else made * 2


def statement(x: Tensor, sizes: Tensor, mask: Any = 1) -> Tensor:
    made, factor = row(x, sizes), 2.0
    if made.shape[0] > 1 and mask is None:
        factor = 3.0
    return made * factor


def one_or_the_other(x: Tensor, sizes: Tensor, mask: Any = 1) -> Tensor:
    made = row(x, sizes)
    return made * 3 if made.shape[0] > 1 or mask is not None else made


def three_conditions(x: Tensor, sizes: Tensor, mask: Any = 1) -> Tensor:
    made = row(x, sizes)
    return made * 3 if made.shape[0] > 1 and made.shape[0] < 1000 and mask is None else made


def negated(x: Tensor, sizes: Tensor, mask: Any = 1) -> Tensor:
    made = row(x, sizes)
    return made * 3 if not (made.shape[0] <= 1 or mask is not None) else made


class Attention(nn.Module):
    """As transformers asks: of a module, beside the length of its queries."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        query = row(x, sizes).view(1, -1, 2, 4).transpose(1, 2)
        is_causal = query.shape[2] > 1 and self.is_causal
        return self.attend(query, is_causal)

    def attend(self, query: Tensor, is_causal: bool) -> Tensor:
        mask = torch.zeros(query.shape[2], query.shape[2])[None, None]
        return F.scaled_dot_product_attention(query, query, query, attn_mask=mask, is_causal=is_causal)


def run(fn: Callable[..., Any], batches: Any = SIZES) -> tuple[int, int]:
    """Held against eager; graphs and graph breaks."""
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(fn, backend=packpass.backend, options=OPTIONS)
    for sizes in batches:
        torch.testing.assert_close(compiled(*arguments(sizes)), fn(*arguments(sizes)))
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


@pytest.mark.parametrize("fn", [with_a_mask, statement, one_or_the_other, three_conditions, negated])
def test_both_ways_come_out_the_same(fn: Callable[..., Any]) -> None:
    assert run(fn) == (1, 0)


def test_asks_a_module() -> None:
    assert run(Attention(is_causal=False)) == (1, 0)


def test_no_image_has_a_slot() -> None:
    """The row is taken to have slots; such a call runs as it is written."""
    assert run(Attention(is_causal=False), (*SIZES, ((0, 3), (2, 0)))) == (1, 0)


# === What must not be joined =================================================================================


def for_long_rows(x: Tensor, sizes: Tensor, mask: Any = None) -> Tensor:
    made = row(x, sizes)
    if made.shape[0] > 16 and mask is None:
        made = made * 2
    return made


def other_number(x: Tensor, sizes: Tensor, mask: Any = None) -> Tensor:
    made, factor = row(x, sizes), 2.0
    if made.shape[0] > 16 and mask is None:
        factor = 3.0
    return made * factor


class Counting(nn.Module):
    """The second condition is asked only where the first holds, and counts how often that is."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    @property
    def is_causal(self) -> bool:
        self.asked += 1
        return False

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        made = row(x, sizes)
        return made * 2 if made.shape[0] > 16 and self.is_causal else made


def raising(x: Tensor, sizes: Tensor, table: Any = ()) -> Tensor:
    """The second condition fails where the first does not hold."""
    made = row(x, sizes)
    return made * 2 if made.shape[0] > 1000 and table[3] else made


@pytest.mark.parametrize("fn", [for_long_rows, other_number, raising])
def test_ways_differ(fn: Callable[..., Any]) -> None:
    run(fn)


def test_a_condition_with_an_effect() -> None:
    module, reference = Counting(), Counting()
    compiled = torch.compile(module, backend=packpass.backend, options=OPTIONS)
    for sizes in SIZES:
        torch.testing.assert_close(compiled(*arguments(sizes)), reference(*arguments(sizes)))
    assert module.asked == reference.asked
