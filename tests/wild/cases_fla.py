"""fla-core: the reference definitions of its kernels, document by document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.wild import sources
from tests.wild.batches import boundaries, floats, over
from tests.wild.case import Program, Verdict, case


def _fla(name: str) -> Any:
    root = sources.use("fla-core")
    sources.bare(root, "fla", "fla.ops", ".".join(name.split(".")[:3]))
    return sources.lenient(name)


def _row(lengths: Sequence[int], *widths: tuple[int, int]) -> list[Tensor]:
    return [floats(1, sum(lengths), heads, size, grad=True, seed=i) for i, (heads, size) in enumerate(widths)]


@case("fla-core")
def fla_attention_decoding() -> Program:
    """One query per document against the document's keys."""
    naive = _fla("fla.ops.attn.naive").naive_attn_decoding

    def call(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Any:
        return naive(q, k, v, cu_seqlens=cu_seqlens)

    def batch(lengths: Sequence[int]) -> Any:
        return floats(1, len(lengths), 4, 8, grad=True), *_row(lengths, (2, 8), (2, 8)), boundaries(lengths)

    return Program(call, over(batch))


@case("fla-core")
def fla_attention_decoding_with_gates() -> Program:
    """Gates summed up within the document."""
    naive = _fla("fla.ops.attn.naive").naive_attn_decoding

    def call(q: Tensor, k: Tensor, v: Tensor, g: Tensor, cu_seqlens: Tensor) -> Any:
        return naive(q, k, v, g=g[..., 0], cu_seqlens=cu_seqlens)

    def batch(lengths: Sequence[int]) -> Any:
        return floats(1, len(lengths), 4, 8, grad=True), *_row(lengths, (2, 8), (2, 8), (4, 1)), boundaries(lengths)

    return Program(call, over(batch))


@case("fla-core", Verdict.REFUSED, graphs=8, breaks=2, codes=["no-rule"], why="scores are summed over heads and sorted")
def fla_sparse_attention_indexer() -> Program:
    """The best keys of every query within its document."""
    naive = _fla("fla.ops.dsa.naive").naive_dsa_indexer

    def call(q: Tensor, k: Tensor, cu_seqlens: Tensor) -> Any:
        return naive(q, k[:, :, 0], None, 4, cu_seqlens=cu_seqlens)

    return Program(call, over(lambda n: (*_row(n, (2, 8), (1, 8)), boundaries(n))))


@case(
    "fla-core",
    Verdict.REFUSED,
    graphs=6,
    breaks=4,
    codes=["body-not-traceable"],
    why="a recurrence is a Python loop over the tokens of a document",
)
def fla_gated_delta_product() -> Program:
    """A recurrence written out token by token."""
    naive = _fla("fla.ops.gated_delta_product.naive").naive_recurrent_gated_delta_product

    def call(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cu_seqlens: Tensor) -> Any:
        return naive(q, k, v, g[..., 0], beta[..., 0], 0.5, cu_seqlens=cu_seqlens, output_final_state=True)

    def batch(lengths: Sequence[int]) -> Any:
        return *_row(lengths, (2, 4), (2, 4), (2, 4), (2, 1), (2, 1)), boundaries(lengths)

    return Program(call, over(batch, ((3, 4), (2, 5, 1), (4,) * 3, (6, 2, 3, 1))))


@case("fla-core")
def fla_split_boundaries() -> Program:
    """Boundaries of pieces of at most 16 tokens, as a list of Python numbers."""
    split = _fla("fla.ops.utils.index").prepare_split_cu_seqlens.__wrapped__

    def call(cu_seqlens: Tensor) -> Any:
        return split(split_size=16, cu_seqlens=cu_seqlens)

    return Program(call, over(lambda n: (boundaries(n),)))


@case("fla-core", Verdict.UNTOUCHED, graphs=6, breaks=4, loops=False)
def fla_token_indices() -> Program:
    """Ids and positions without a loop."""
    module = _fla("fla.ops.utils.index")

    def call(cu_seqlens: Tensor) -> Any:
        return module.prepare_lens.__wrapped__(cu_seqlens), module._segmented_arange(torch.diff(cu_seqlens))

    return Program(call, over(lambda n: (boundaries(n),)))
