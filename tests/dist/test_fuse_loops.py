"""Loops over documents with an all-to-all per document and section, on real gloo ranks."""

from __future__ import annotations

import re

import pytest
import torch

from tests.dist import a2a_programs, loop_ranks
from tests.dist.ranks import Ranks

FOUR = pytest.param(4, marks=pytest.mark.slow)  # the larger group is also in test_rewrites, without real ranks


@pytest.mark.parametrize("cp", [2, FOUR])
@pytest.mark.parametrize("name", a2a_programs.REWRITTEN)
def test_same_bits_in_one_exchange(ranks: Ranks, cp: int, name: str) -> None:
    """Forward and backward, for 5, 1 and 3 documents in one compiled program."""
    ranks.call(loop_ranks.compare, cp, name, torch.float32, "aot_eager", [5, 1, 3], timeout_s=180)


def test_four_ranks(ranks: Ranks) -> None:
    ranks.call(loop_ranks.compare, 4, "to_heads_listed", torch.float32, "aot_eager", [4], timeout_s=180)
    ranks.call(loop_ranks.compare, 4, "to_tokens", torch.float32, "aot_eager", [4], timeout_s=180)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_dtypes(ranks: Ranks, dtype: torch.dtype) -> None:
    ranks.call(loop_ranks.compare, 2, "to_heads", dtype, "aot_eager", [4], timeout_s=180)


@pytest.mark.parametrize(
    "name", ["round_trip", *(pytest.param(n, marks=pytest.mark.slow) for n in ("to_heads_three", "to_tokens_written"))]
)
def test_generated_code(ranks: Ranks, name: str) -> None:
    ranks.call(loop_ranks.compare, 2, name, torch.float32, "inductor", [5, 2], timeout_s=300)


@pytest.mark.parametrize("name", a2a_programs.LEFT)
def test_left_alone(ranks: Ranks, name: str) -> None:
    ranks.call(loop_ranks.left_alone, 2, name, timeout_s=180)


@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_lengths_that_do_not_divide(ranks: Ranks, inner: str) -> None:
    """Every rank raises, names the document and its length, and is fit for the next call."""
    for messages in ranks.call(loop_ranks.indivisible, 2, "to_heads", inner, timeout_s=300):
        assert not messages[0], messages
        for message, length in zip(messages[1:], ("2", "5"), strict=True):
            assert re.search(rf"document 1\b.*\b{length}\b", message, flags=re.DOTALL), messages
