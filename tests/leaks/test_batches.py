"""Where documents come from: boundaries of every source, padded batches, rows of several documents."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import packpass
from packpass.ops import varlen_attention
from tests.leaks.planted import CU, LINEAR, WIDTH, T, row

MASK = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]])


def batch() -> Tensor:
    return torch.randn(3, 7, WIDTH, generator=torch.Generator().manual_seed(5))


def attends(x: Tensor, attention_mask: Tensor) -> Tensor:
    q = LINEAR(x)[:, None]
    return x + F.scaled_dot_product_attention(q, q, q, attn_mask=attention_mask.bool()[:, None, None])[:, 0]


def attends_to_padding(x: Tensor, attention_mask: Tensor) -> Tensor:
    q = LINEAR(x)[:, None]
    return x + F.scaled_dot_product_attention(q, q, q)[:, 0]


def pools(x: Tensor, attention_mask: Tensor) -> Tensor:
    keep = attention_mask[..., None].to(x.dtype)
    return LINEAR((x * keep).sum(1) / keep.sum(1))


def pools_padding(x: Tensor, attention_mask: Tensor) -> Tensor:
    return LINEAR(x.mean(1))


def rows_mixed(x: Tensor, attention_mask: Tensor) -> Tensor:
    return x - x.mean(0, keepdim=True)


@pytest.mark.parametrize("model", [attends, pools], ids=lambda m: m.__name__)
def test_a_padded_batch_that_is_kept_apart(model: Any) -> None:
    found = packpass.audit(model)(batch(), MASK)
    assert found.clean, str(found)
    assert found.probed == (0, 1, 2, "padding")
    assert found.held == (("attention_mask", "a mask"),)


@pytest.mark.parametrize(
    ("model", "operation"), [(attends_to_padding, "scaled_dot_product_attention"), (pools_padding, "mean")]
)
def test_padding_that_leaks_into_tokens(model: Any, operation: str) -> None:
    found = packpass.audit(model)(batch(), MASK)
    assert [(leak.operation, leak.source_document) for leak in found.leaks] == [(operation, "padding")]
    assert set(found.leaks[0].seen_by) == {0, 2}
    assert "padding" in found.leaks[0].advice


def test_rows_that_see_each_other() -> None:
    (leak,) = packpass.audit(rows_mixed)(batch(), torch.ones_like(MASK)).leaks
    assert (leak.operation, leak.source_document, leak.seen_by) == ("mean", 0, (1, 2))
    assert leak.distance == "slots of other rows"


def test_left_padding_and_flattened_batches() -> None:
    def flattened(x: Tensor, attention_mask: Tensor) -> Tensor:
        return LINEAR(x.reshape(-1, WIDTH)).reshape(x.shape)

    assert packpass.audit(flattened)(batch(), MASK.flip(1)).clean
    leak = packpass.audit(lambda x, attention_mask: x.reshape(-1, WIDTH).cumsum(0))(batch(), MASK.flip(1)).leaks[0]
    assert leak.operation == "cumsum"


def running_sum(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return LINEAR(x).cumsum(1)


@dataclasses.dataclass
class PackedSeqParams:
    cu_seqlens_q: Tensor


POSITIONS = torch.cat([torch.arange(7), torch.arange(8), torch.arange(9)])[None]


def test_sources_of_boundaries() -> None:
    def source(model: Any, *args: Any, cu_seqlens: Any = None, **kwargs: Any) -> str:
        found = packpass.audit(model, cu_seqlens)(*args, **kwargs)
        assert not found.clean
        assert found.leaks[0].seen_by == (1, 2)
        return found.source

    assert source(running_sum, row(), cu_seqlens=CU.tolist()) == "cu_seqlens"
    assert source(running_sum, row(), cu_seqlens=CU.int()) == "cu_seqlens"
    assert source(running_sum, row(), cu_seq_lens_q=CU) == "argument cu_seq_lens_q"
    assert source(running_sum, row(), packed_seq_params=PackedSeqParams(CU)) == "argument cu_seqlens_q"
    assert source(running_sum, row(), position_ids=POSITIONS) == "argument position_ids"
    assert source(running_sum, row(), seq_idx=(POSITIONS == 0).cumsum(1)) == "argument seq_idx"
    assert source(lambda x: running_sum(packpass.packed(x, CU, 1)), row()) == "packpass.packed"

    def attention(x: Tensor, ends: Tensor) -> Tensor:
        q = LINEAR(x)[0].unflatten(-1, (2, 6))
        return varlen_attention(q, q, q, ends).flatten(1)[None] + running_sum(x)

    assert source(attention, row(), CU.int()).startswith("varlen_attention")


def test_what_the_code_says_comes_before_names() -> None:
    def declared(x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return LINEAR(packpass.packed(x, CU, 1))

    found = packpass.audit(declared)(row(), torch.tensor([0, 12, 24]))
    assert (found.source, found.documents) == ("packpass.packed", 3)


def test_a_row_with_a_tail_and_padded_documents() -> None:
    found = packpass.audit(running_sum)(row(), cu_seqlens=torch.tensor([0, 7, 15, 20]))
    assert found.probed == (0, 1, 2, "padding")
    assert all(leak.source_document != "padding" for leak in found.leaks)

    physical = torch.tensor([0, 8, 16, 24])
    flipped = packpass.audit(lambda x, **_: x + x.flip(1))(
        row(), cu_seqlens=torch.tensor([0, 7, 14, 20]), cu_seqlens_padded=physical
    )
    assert not flipped.clean
    assert flipped.documents == 3


def test_rows_of_several_documents() -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 1]])
    x = batch()[:2]
    found = packpass.audit(running_sum)(x, position_ids=positions)
    assert (found.documents, found.source) == (4, "argument position_ids")
    assert {leak.seen_by for leak in found.leaks} == {(1,)}
    assert packpass.audit(lambda x, position_ids: LINEAR(x))(x, positions).clean


def test_integer_tokens_are_exchanged_and_ignored_labels_kept() -> None:
    embedding = torch.nn.Embedding(50, WIDTH)
    ids = torch.arange(T)[None] * 7 % 50
    labels = torch.full((1, T), -100)
    labels[0, ::2] = 3

    def model(ids: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
        assert int(labels.max()) <= 49
        assert bool((labels[0, 1::2] == -100).all())
        return embedding(ids)

    found = packpass.audit(model)(ids, labels, CU)
    assert found.clean
    assert found.changed == ("ids",)
    assert found.held == (("labels", "it holds one token only, so there is none to exchange it for"),)
    assert "gradient of embedding of tokens" in found.compared


def test_losses_per_token() -> None:
    targets = torch.arange(T)[None] * 5 % WIDTH

    def shifted(x: Tensor, targets: Tensor, cu_seqlens: Tensor) -> Tensor:
        logits = LINEAR(x)
        after = torch.cat([targets[:, 1:], targets[:, :1]], 1)
        return F.cross_entropy(logits[0], after[0], reduction="none")

    (leak,) = packpass.audit(shifted)(row(), targets, CU).leaks
    assert (leak.operation, leak.seen_by) == ("cat", (2,))
    assert packpass.audit(lambda x, t, cu_seqlens: F.cross_entropy(LINEAR(x)[0], t[0], reduction="none"))(
        row(), targets, CU
    ).clean
