"""Outputs that have no dimension of the row's length, and models whose forward is not easily repeated."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import packpass

from .planted import CU, LINEAR, T, planted_lines, row

STARTS = CU[1:-1]


def tokens() -> Tensor:
    return torch.arange(T)[None] * 5 % 8


# === The row is cut, repeated, or laid out otherwise =========================================================


def next_token_loss(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    logits = LINEAR(x)
    return logits, F.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none")  # leak


def loss_alone(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    return F.cross_entropy(LINEAR(x)[0, :-1], ids[0, 1:], reduction="none")  # leak


def differences(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> dict[str, Tensor]:
    return {"hidden": LINEAR(x), "steps": x[:, 1:] - x[:, :-1]}  # leak


def documents_in_a_list(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> list[Tensor]:
    summed = x.cumsum(1)  # leak
    return [LINEAR(part) for part in summed.split(cu_seqlens.diff().tolist(), 1)]


def every_token_twice(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    return x.cumsum(1).repeat_interleave(2, 1)  # leak


def flattened(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    return LINEAR(x), x.roll(1, 1).flatten()  # leak


def spectrum(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    return torch.fft.fft(x, dim=1)  # leak


def chosen_by_experts(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    weights, places = LINEAR(x[0])[:, 0].topk(6)  # leak
    return x[0].index_add(0, places, x[0][places] * weights[:, None])[None]


def writes_its_input(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    x[:, 1:] += x[:, :-1].clone()  # leak
    return LINEAR(x)


LEAKING = [
    next_token_loss, loss_alone, differences, documents_in_a_list, every_token_twice, flattened, spectrum,
    chosen_by_experts, writes_its_input,
]  # fmt: skip


@pytest.mark.parametrize("model", LEAKING, ids=lambda m: m.__name__)
def test_leaks_are_found_at_their_line(model: Callable[..., Any]) -> None:
    found = packpass.audit(model)(row(), tokens(), CU)
    assert found.leaks
    assert {int(leak.location.rpartition(":")[2]) for leak in found.leaks} <= planted_lines(model)


def test_a_leak_of_the_loss_is_found_beside_another_one() -> None:
    def both(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        return next_token_loss(x.cumsum(1), ids, cu_seqlens)

    found = packpass.audit(both)(row(), tokens(), CU)
    assert {leak.operation for leak in found.leaks} == {"cumsum", "cross_entropy"}
    assert "[1]" in found.compared


# === Their clean twins =======================================================================================


def next_token_loss_that_stops(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    logits, targets = LINEAR(x), ids[0, 1:].clone()
    targets[STARTS - 1] = -100
    return logits, F.cross_entropy(logits[0, :-1], targets, reduction="none")


def last_slots(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    return LINEAR(x), LINEAR(x)[:, 1:]


def own_documents(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> list[Tensor]:
    return [LINEAR(x[:, s:e]).cumsum(1) for s, e in itertools.pairwise(cu_seqlens)]


def own_tokens_twice(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    return LINEAR(x).repeat_interleave(2, 1)


def spectrum_of_channels(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    return torch.fft.fft(x, dim=2)


def statistics_beside(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, ...]:
    y = LINEAR(x).softmax(-1)
    return y, y.mean((0, 1)), F.one_hot(y.argmax(-1), 12).sum((0, 1)), y[0].T @ y[0]


def scales_its_input(x: Tensor, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    x *= 2
    return LINEAR(x)


CLEAN = [
    next_token_loss_that_stops, last_slots, own_documents, own_tokens_twice, spectrum_of_channels, statistics_beside,
    scales_its_input,
]  # fmt: skip


@pytest.mark.parametrize("model", CLEAN, ids=lambda m: m.__name__)
def test_no_false_alarm(model: Callable[..., Any]) -> None:
    found = packpass.audit(model)(row(), tokens(), CU)
    assert found.clean, str(found)
    assert all("raised" not in line for line in found.not_covered)


# === What is said, and what is an error ======================================================================


def test_what_is_not_compared_is_said() -> None:
    def pooled(x: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        return LINEAR(x), F.avg_pool1d(x.mT, 2).mT

    def selected(x: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        return LINEAR(x), x[0][x[0, :, 0] > 0]

    assert any(
        "output [1]" in line and "not compared" in line for line in packpass.audit(pooled)(row(), CU).not_covered
    )
    found = packpass.audit(selected)(row(), CU)
    assert any("output [1] has another form" in line for line in found.not_covered)
    assert "[1]" not in found.compared


def test_nothing_is_clean_if_its_form_is_another_one() -> None:
    with pytest.raises(ValueError, match="value per token"):
        packpass.audit(lambda x, cu_seqlens: x[0][x[0, :, 0] > 0])(row(), CU)


def test_jagged_outputs_are_rows() -> None:
    def jagged(x: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        parts = [source[0, s:e] for s, e in itertools.pairwise(CU)]
        return LINEAR(x), torch.nested.nested_tensor(parts, layout=torch.jagged)

    assert not packpass.audit(lambda x, cu_seqlens: jagged(x, x.cumsum(1)))(row(), CU).clean
    assert packpass.audit(lambda x, cu_seqlens: jagged(x, x * 2))(row(), CU).clean


def test_a_forward_without_a_backward() -> None:
    class NoBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if ctx.needs_input_grad[0]:
                raise NotImplementedError("no backward on this device")
            return x.cumsum(1)

    found = packpass.audit(lambda x, cu_seqlens: NoBackward.apply(x))(row(), CU)
    assert not found.clean
    assert any("no backward on this device" in line for line in found.not_covered)


def test_tokens_given_twice_and_expanded_rows() -> None:
    embedding = torch.nn.Embedding(2, 8)
    ids = torch.arange(T)[None] // 2 % 2

    def model(ids: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
        return embedding(ids).cumsum(1)

    assert not packpass.audit(model)(ids, ids, CU).clean
    spread = row()[..., :1].expand(1, T, 12)
    assert not packpass.audit(lambda x, cu_seqlens: x.cumsum(1))(spread, CU).clean
    assert packpass.audit(lambda x, cu_seqlens: LINEAR(x))(spread, CU).clean
