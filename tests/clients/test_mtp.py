"""A multi-token-prediction model written for unpacked rows, on packed ones: through packpass it learns what it learns
from the same documents one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.utils import counters

import packpass
from packpass.ops import packed_roll, varlen_attention
from perf.data import PackedRow, pack, paragraphs
from perf.models import mtp
from perf.models.aux_loss import AutoScaledAuxLoss, DepthLosses
from perf.models.batches import (
    Batch,
    backward,
    backward_one_by_one,
    batch_of,
    contaminated,
    largest_gradient_error,
    missing,
)
from perf.models.gpt import Config

TINY = Config(hidden=16, heads=2, layers=1, depths=3)


def attention(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    return varlen_attention(q, k, v, cu_seqlens, is_causal=True)


def model_of(**changes: Any) -> mtp.MTPModel:
    torch.manual_seed(0)
    return mtp.MTPModel(dataclasses.replace(TINY, **changes), attention)


def batch(boundaries: list[int], total: int) -> Batch:
    ids = torch.randint(1, 256, (1, total), generator=torch.Generator().manual_seed(len(boundaries)))
    return batch_of(PackedRow(ids, torch.tensor(boundaries, dtype=torch.int32)))


TEXT = [batch_of(row) for row in pack(paragraphs(3_000), 700)]
SPECIAL = batch([0, 1, 1, 3, 7, 30, 31, 60], 64)  # one token, none, fewer than the depths, and a tail


def compiled(model: Any, inner: str = "aot_eager", **options: Any) -> Any:
    torch._dynamo.reset()
    counters.clear()
    settings = {"packpass.inner_backend": inner, **{f"packpass.{k}": v for k, v in options.items()}}
    return torch.compile(model, backend=packpass.backend, options=settings)


def gradients(model: torch.nn.Module) -> list[Tensor | None]:
    found = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return found


def assert_as_one_by_one(model: mtp.MTPModel, call: Any, data: Batch) -> None:
    expected = backward_one_by_one(model, data)
    wanted = gradients(model)
    found = backward(call, data)
    assert max(abs(a - b) for a, b in zip(found.losses, expected.losses, strict=True)) <= 1e-5
    assert largest_gradient_error(gradients(model), wanted) <= 1e-5
    output = call(*data.arguments())
    assert contaminated(output, data.cu_seqlens) == 0
    assert missing(output, data) == 0


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    AutoScaledAuxLoss.set_scale(torch.tensor(1.0))
    torch._dynamo.reset()


def test_the_text_is_many_short_documents() -> None:
    pieces = list(paragraphs(20_000))
    assert len(pieces) > 40
    assert all(piece.strip() and b"\n\n" not in piece for piece in pieces)
    assert TEXT[0].cu_seqlens.numel() > 3
    for data in TEXT:
        cu = data.cu_seqlens
        assert data.loss_mask.sum() == cu[-1]
        assert (data.position_ids[0, cu[:-1].long()] == 0).all()
        assert (data.position_ids[0, (cu[1:] - 1).long()] == cu.diff() - 1).all()


# === The reference itself ====================================================================================


@pytest.mark.parametrize("data", [TEXT[0], SPECIAL], ids=["text", "special"])
def test_shifts_written_by_hand_give_what_documents_one_by_one_give(data: Batch) -> None:
    model, cu = model_of(), data.cu_seqlens
    with mock.patch.multiple(
        mtp,
        next_tokens=lambda x: packed_roll(x, cu),
        next_labels=lambda x: packed_roll(x, cu, fill=mtp.IGNORE),
        next_mask=lambda x: packed_roll(x, cu),
    ):
        by_hand = backward(model, data)
        found = gradients(model)
        output = model(*data.arguments())
    expected = backward_one_by_one(model, data)
    assert by_hand.losses == pytest.approx(expected.losses, abs=1e-5)
    assert largest_gradient_error(found, gradients(model)) <= 1e-5
    assert contaminated(output, cu) == 0
    assert missing(output, data) == 0


def test_naive_shifts_leak() -> None:
    """Otherwise nothing here would show anything."""
    model, data = model_of(), TEXT[0]
    naive = backward(model, data)
    found = gradients(model)
    expected = backward_one_by_one(model, data)
    assert max(abs(a - b) for a, b in zip(naive.losses, expected.losses, strict=True)) > 1e-4
    assert largest_gradient_error(found, gradients(model)) > 1e-2
    # One slot per neighbour at depth 0, two at depth 1, ...
    assert contaminated(model(*data.arguments()), data.cu_seqlens) > 4 * (data.cu_seqlens.numel() - 2)


def test_one_document_is_what_the_model_was_written_for() -> None:
    model, data = model_of(), batch([0, 40], 40)
    assert backward(model, data).losses == pytest.approx(backward_one_by_one(model, data).losses, abs=1e-6)
    assert contaminated(model(*data.arguments()), data.cu_seqlens) == 0
    assert missing(model(*data.arguments()), data) == 0


# === Through packpass ========================================================================================


@pytest.mark.parametrize("data", [TEXT[0], SPECIAL, batch([0, 40], 40)], ids=["text", "special", "one document"])
@pytest.mark.parametrize("changes", [{}, {"repeat_layer": True}, {"scale_by_class_attribute": True}], ids=str)
def test_packed_equals_one_by_one(data: Batch, changes: dict[str, Any]) -> None:
    model = model_of(**changes)
    assert_as_one_by_one(model, compiled(model), data)
    assert not counters["graph_break"]


@pytest.mark.slow
def test_packed_equals_one_by_one_through_inductor() -> None:
    model = model_of()
    assert_as_one_by_one(model, compiled(model, "inductor"), TEXT[0])


def test_every_shift_is_in_the_report() -> None:
    model = model_of()
    report = packpass.explain(model, options={"packpass.inner_backend": "eager"})(*TEXT[0].arguments())
    shifts = [item for item in report.rewrites if item.rule == "pack_shifts"]
    # ids and positions at every depth, labels and masks once more; in mtp.py, where the user wrote them
    assert len(shifts) == 4 * TINY.depths + 2
    assert {Path(item.location.rpartition(":")[0]).name for item in shifts} == {"mtp.py"}
    assert (report.graphs, report.graph_breaks) == (1, 0)


def test_switched_off_it_is_the_model_as_it_is_written() -> None:
    model = model_of()
    naive = backward(model, TEXT[0])
    wanted = gradients(model)
    found = backward(compiled(model, fix_shifts="off"), TEXT[0])
    assert found.losses == pytest.approx(naive.losses, abs=1e-6)
    assert largest_gradient_error(gradients(model), wanted) <= 1e-5


def test_few_graphs_for_many_batches() -> None:
    """Rows with other numbers of documents, and of slots."""
    model = model_of(layers=1, depths=2)
    call = compiled(model, "eager")
    numbers = torch.Generator().manual_seed(0)
    for index in range(28):
        total = 60 + index % 7
        count = [1, 2, 3, 5, 8, 13, 21][index % 7] + index // 7
        cuts = torch.randperm(total - 1, generator=numbers)[: count - 1].sort().values + 1
        data = batch([0, *cuts.tolist(), total - index % 2], total)
        output = call(*data.arguments())
        assert contaminated(output, data.cu_seqlens) == 0
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.parametrize("by_class", [False, True])
def test_the_auxiliary_losses_are_scaled(by_class: bool) -> None:
    """The factor of the class is set between forward and backward, as training loops do."""
    model, data = model_of(scale_by_class_attribute=by_class), TEXT[0]
    call = compiled(model)
    for factor in (4.0, 0.5):
        found = []
        for way in (call, model):
            with (
                mock.patch.multiple(
                    mtp,
                    next_tokens=lambda x: packed_roll(x, data.cu_seqlens),
                    next_labels=lambda x: packed_roll(x, data.cu_seqlens, fill=mtp.IGNORE),
                    next_mask=lambda x: packed_roll(x, data.cu_seqlens),
                )
                if way is model
                else mock.patch.object(mtp, "IGNORE", mtp.IGNORE)
            ):
                AutoScaledAuxLoss.set_scale(torch.tensor(99.0))
                output = way(*data.arguments(), None if by_class else torch.tensor(factor))
                AutoScaledAuxLoss.set_scale(torch.tensor(factor))
                (output.loss / output.tokens).backward()
            found.append(gradients(model))
        assert largest_gradient_error(*found) <= 1e-5
        assert any(g is not None and g.abs().sum() > 0 for g in found[0])


# === Logging =================================================================================================


@pytest.mark.slow
def test_losses_are_logged_inside_the_compiled_step() -> None:
    model, data = model_of(), TEXT[0]
    expected = backward_one_by_one(model, data).losses[1:]
    model.log = DepthLosses(TINY.depths)
    call = compiled(model)
    for _ in range(3):
        call(*data.arguments())
    assert model.log.reduce() == pytest.approx(expected, abs=1e-5)
    model.log.clear()
    assert model.log.reduce() == [0.0] * TINY.depths


def _log_in_a_group(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    losses = DepthLosses(2)
    losses.save(0, torch.tensor(3.0 + rank), torch.tensor(1.0 + rank))
    losses.save(1, torch.tensor(0.0), torch.tensor(0.0))
    assert losses.reduce() == pytest.approx([7.0 / 3.0, 0.0])
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    assert losses.reduce(alone)[0] == pytest.approx((3.0 + rank) / (1.0 + rank))
    dist.destroy_process_group()


@pytest.mark.dist
@pytest.mark.slow
def test_losses_are_reduced_over_a_group(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_log_in_a_group, (str(tmp_path / "store"),), nprocs=2)
