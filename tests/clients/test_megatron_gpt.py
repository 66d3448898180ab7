"""megatron-core's GPTModel with two MTP layers, on the CPU, on packed rows, compiled by packpass.

What is not megatron's own here:

* The core attention: its ``DotProductAttention`` asserts unpacked input (and takes dropout's random state from a CUDA
  tracker), the others are of Transformer Engine. Its spec system takes `PackedAttention` instead.
* The loss logger allocates its tensor on ``torch.cuda.current_device()``: it has one already.
* ``_kernel_make_viewless_tensor`` makes a leaf with ``requires_grad=True`` and swaps its data, a trick that spares
  memory and that Dynamo does not trace: it copies.
* ``warnings.warn`` about deprecated arguments, which Dynamo does not trace either, is silent.

The last two are for fullgraph; without them the same results come from more than one graph. Rotary positions of packed
rows cannot be captured whole: they compare a size with ``cu_seqlens[-1]``, a branch on data, so positions are learned.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters

import packpass
from packpass.decisions.records import collecting
from packpass.ops import varlen_attention
from packpass.reports.report import Report
from perf.models.batches import largest_gradient_error

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it misses optional packages that play no part here
    pytest.importorskip("megatron.core.models.gpt.gpt_model")
    import megatron.core.utils as utils
    from megatron.core import parallel_state
    from megatron.core.models.gpt import gpt_model
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_mtp_block_spec
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer import multi_token_prediction as mtp
    from megatron.core.transformer.transformer_config import TransformerConfig

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

DEPTHS = 2


class PackedAttention(nn.Module):
    """A core attention for packed rows ``[T, heads, size]``, and for unpacked ones ``[s, 1, heads, size]``."""

    def __init__(self, config: Any, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        self.scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        if packed_seq_params is not None:
            cu = packed_seq_params.cu_seqlens_q
            return varlen_attention(query, key, value, cu, is_causal=True, scale=self.scale).flatten(1)
        row = torch.tensor([0, query.shape[0]])
        rows = (x.squeeze(1) for x in (query, key, value))
        return varlen_attention(*rows, row, is_causal=True, scale=self.scale).flatten(1)[:, None]


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(1, 1)
    quiet = types.SimpleNamespace(warn=lambda *args, **kwargs: None)
    with (
        mock.patch.object(utils, "_kernel_make_viewless_tensor", lambda inp, requires_grad: inp.clone()),
        mock.patch.object(utils, "warnings", quiet),
    ):
        yield
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    mtp.MTPLossLoggingHelper.tracker["values"] = torch.zeros(DEPTHS)
    yield
    mtp.MTPLossAutoScaler.set_loss_scale(torch.tensor(1.0))
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def model(process_group: None) -> nn.Module:
    config = TransformerConfig(
        num_layers=1,
        hidden_size=32,
        num_attention_heads=4,
        mtp_num_layers=DEPTHS,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        calculate_per_token_loss=True,  # losses are summed, so documents add up
        bias_dropout_fusion=False,
    )
    spec = get_gpt_layer_local_spec()
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    torch.manual_seed(0)
    return gpt_model.GPTModel(
        config,
        spec,
        vocab_size=97,
        max_sequence_length=64,
        position_embedding_type="learned_absolute",
        mtp_block_spec=get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False),
    )


Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def batch(boundaries: list[int], total: int) -> Batch:
    """``input_ids, position_ids, labels, loss_mask, cu_seqlens``; labels are shifted per document by the data loader,
    as megatron's are."""
    ids = torch.randint(1, 97, (1, total), generator=torch.Generator().manual_seed(len(boundaries)))
    positions, labels, mask = torch.zeros_like(ids), torch.zeros_like(ids), torch.zeros(1, total)
    for start, stop in pairwise(boundaries):
        positions[0, start:stop] = torch.arange(stop - start)
        labels[0, start : stop - 1] = ids[0, start + 1 : stop]
        mask[0, start : stop - 1] = 1
    return ids, positions, labels, mask, torch.tensor(boundaries, dtype=torch.int32)


BATCHES = [batch([0, 9, 10, 30, 48], 48), batch([0, 48], 48), batch([0, 1, 1, 3, 20, 33, 35, 41], 44)]


def step_of(model: nn.Module) -> Callable[..., Tensor]:
    def step(input_ids: Tensor, position_ids: Tensor, labels: Tensor, loss_mask: Tensor, cu_seqlens: Tensor) -> Tensor:
        packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens)
        losses = model(
            input_ids, position_ids, None, labels=labels, loss_mask=loss_mask.clone(), packed_seq_params=packed
        )
        return (losses * loss_mask).sum()

    return step


def gradients(model: nn.Module) -> list[Tensor | None]:
    found = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return found


def one_by_one(model: nn.Module, data: Batch) -> tuple[float, list[Tensor | None]]:
    """Every document as an unpacked row of its own, in eager mode."""
    *fields, cu = data
    total = 0.0
    for start, stop in pairwise(cu.tolist()):
        if stop > start:
            ids, positions, labels, mask = (x[:, start:stop] for x in fields)
            loss = (model(ids, positions, None, labels=labels, loss_mask=mask.clone()) * mask).sum()
            loss.backward()
            total += float(loss)
    return total, gradients(model)


def assert_as_one_by_one(model: nn.Module, call: Callable[..., Tensor], data: Batch) -> None:
    expected, wanted = one_by_one(model, data)
    loss = call(*data)
    assert float(loss) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    loss.backward()
    assert largest_gradient_error(gradients(model), wanted) <= 1e-5


def compiled(step: Callable[..., Tensor], inner: str = "aot_eager", **keywords: Any) -> Callable[..., Tensor]:
    return torch.compile(
        step, backend=packpass.backend, options={"packpass.inner_backend": inner}, fullgraph=True, **keywords
    )


def naive_roll(tensor: Tensor, shifts: int = -1, dims: int = -1, cp_group: Any = None, packed_seq_params: Any = None):  # type: ignore[no-untyped-def]
    """``roll_tensor`` of releases that did not know packed rows; today's without ``packed_seq_params``."""
    return ROLL_TENSOR(tensor, shifts, dims, cp_group)


ROLL_TENSOR = mtp.roll_tensor


def test_eager_on_packed_rows_is_right(model: nn.Module) -> None:
    """Megatron's own loops, which the compiled model is compared with, and the attention put into it."""
    for data in BATCHES:
        assert_as_one_by_one(model, step_of(model), data)


def test_one_graph_for_every_number_of_documents(model: nn.Module) -> None:
    call, report = compiled(step_of(model)), Report()
    with collecting(report):
        assert_as_one_by_one(model, call, BATCHES[0])
    loops = [item for item in report.rewrites if item.rule == "vectorize_segments"]
    assert len(loops) == 4 * DEPTHS  # ids, positions, labels and the mask at every depth
    assert all("multi_token_prediction.py" in item.location for item in loops)
    assert report.graphs == 1
    for data in BATCHES[1:]:
        assert_as_one_by_one(model, call, data)
    assert counters["stats"]["unique_graphs"] <= 2
    assert not counters["graph_break"]


@pytest.mark.slow
def test_the_loss_scale_of_the_class_is_read_by_the_backward(model: nn.Module) -> None:
    """Megatron's schedules set it after the forward, in shape [1]."""
    call, data = compiled(step_of(model)), BATCHES[0]
    found = []
    for factor in (8.0, 0.25):
        for way in (call, step_of(model)):
            mtp.MTPLossAutoScaler.set_loss_scale(torch.tensor(1.0))
            loss = way(*data)
            mtp.MTPLossAutoScaler.set_loss_scale(torch.full((1,), factor))
            loss.backward()
            found.append(gradients(model))
        assert largest_gradient_error(found[-2], found[-1]) <= 1e-5
    assert largest_gradient_error(found[0], found[2]) > 1e-2


@pytest.mark.slow
def test_losses_are_logged(model: nn.Module) -> None:
    tracker = mtp.MTPLossLoggingHelper.tracker
    step_of(model)(*BATCHES[0])
    wanted = tracker["values"].clone()
    tracker["values"].zero_()
    compiled(step_of(model))(*BATCHES[0])
    assert torch.allclose(tracker["values"], wanted, rtol=1e-5)
    mtp.MTPLossLoggingHelper.reduce_loss_in_tracker()
    assert (wanted > 0).all()


@pytest.mark.slow
def test_naive_shifts_of_earlier_releases_are_fixed(model: nn.Module) -> None:
    """Boundaries come from the attention: the shifts themselves are given none."""
    with mock.patch.object(mtp, "roll_tensor", naive_roll), mock.patch.object(gpt_model, "roll_tensor", naive_roll):
        step, data = step_of(model), BATCHES[0]
        step(*data).backward()
        leaking = gradients(model)
        _, wanted = one_by_one(model, data)
        assert largest_gradient_error(leaking, wanted) > 1e-2
        call = compiled(step)
        for data in BATCHES[:2]:
            assert_as_one_by_one(model, call, data)


@pytest.mark.slow
def test_through_inductor(model: nn.Module) -> None:
    call = compiled(step_of(model), "inductor")
    for data in BATCHES:
        assert_as_one_by_one(model, call, data)
    assert counters["stats"]["unique_graphs"] <= 2
