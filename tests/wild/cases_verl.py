"""verl: padded rows to packed ones and back, response windows."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.wild import megatron, sources
from tests.wild.batches import boundaries, floats, ids, mask, over
from tests.wild.case import Program, Verdict, case


def _verl(name: str) -> Any:
    root = sources.use("verl")
    if "verl" not in importlib.sys.modules:  # type: ignore[attr-defined]
        sources.bare(
            root, "verl", "verl.utils", "verl.models", "verl.models.mcore", "verl.workers", "verl.workers.utils"
        )
    megatron.megatron("0.16")
    return sources.lenient(name)


@case("verl")
def verl_preprocess_packed_seqs() -> Program:
    """Left-padded ids [B, S] to a packed row."""
    preprocess = _verl("verl.models.mcore.util").preprocess_packed_seqs

    def call(input_ids: Tensor, attention_mask: Tensor) -> Any:
        packed, params = preprocess(input_ids, attention_mask)
        return packed, params.cu_seqlens_q

    return Program(call, over(lambda n: (ids(len(n), max(n)), mask(n, "left"))))


@case("verl")
def verl_postprocess_packed_seqs() -> Program:
    """A packed row [1, T, H] to left-padded rows."""
    postprocess = _verl("verl.models.mcore.util").postprocess_packed_seqs

    def call(output: Tensor, params: Any, attention_mask: Tensor) -> Any:
        return postprocess(output, params, attention_mask, attention_mask.shape[0], attention_mask.shape[1])

    def batch(lengths: Sequence[int]) -> Any:
        params = megatron.packed_params(boundaries(lengths))
        return floats(1, sum(lengths), 8, grad=True), params, mask(lengths, "left")

    return Program(call, over(batch))


@case("verl")
def verl_preprocess_bshd() -> Program:
    """Left-padded rows to right-padded ones of the longest length."""
    preprocess = _verl("verl.models.mcore.util").preprocess_bshd

    def batch(lengths: Sequence[int]) -> Any:
        tokens = mask(lengths, "left")
        return ids(len(lengths), max(lengths)), tokens, (tokens.cumsum(1) - 1).clamp(min=0)

    return Program(preprocess, over(batch))


@case("verl")
def verl_postprocess_bshd() -> Program:
    """Right-padded rows back to left-padded ones."""
    postprocess = _verl("verl.models.mcore.util").postprocess_bshd

    def call(result: Tensor, attention_mask: Tensor, original: Tensor) -> Any:
        return postprocess(result, attention_mask, original, original.shape[1])

    def batch(lengths: Sequence[int]) -> Any:
        return floats(len(lengths), max(lengths), 8, grad=True), mask(lengths), mask(lengths, "left")

    return Program(call, over(batch))


@case(
    "verl",
    Verdict.REFUSED,
    graphs=4,
    breaks=14,
    codes=["frame-not-compiled"],
    why="documents are those of a jagged tensor",
)
def verl_preprocess_thd_engine() -> Program:
    """A jagged batch of ids to a packed row with positions."""
    preprocess = _verl("verl.models.mcore.util").preprocess_thd_engine

    def call(input_ids: Tensor) -> Any:
        packed, params, positions = preprocess(input_ids)
        return packed, params.cu_seqlens_q, positions

    def batch(lengths: Sequence[int]) -> Any:
        return torch.nested.nested_tensor_from_jagged(ids(sum(lengths)), boundaries(lengths, torch.int64))

    return Program(call, over(batch))


@case("verl")
def verl_response_from_nested() -> Program:
    """The window of the response, one slot to the left, of every row of a packed batch."""
    response = _verl("verl.workers.utils.padding").response_from_nested

    def batch(lengths: Sequence[int]) -> Any:
        row = floats(sum(lengths), grad=True)
        jagged = torch.nested.nested_tensor_from_jagged(row, boundaries(lengths, torch.int64))
        replies = [max(n // 2, 1) for n in lengths]
        return jagged, torch.nested.nested_tensor_from_jagged(ids(sum(replies)), boundaries(replies, torch.int64))

    return Program(response, over(batch))


@case("verl", Verdict.UNTOUCHED, graphs=4, loops=False)
def verl_log_probs_from_padded_rows() -> Program:
    """Unpadding by indices: no loop over documents."""
    rmpad = _verl("verl.utils.torch_functional").log_probs_from_logits_response

    def call(input_ids: Tensor, logits: Tensor) -> Any:
        return rmpad(input_ids, logits, 2)

    return Program(call, over(lambda n: (ids(len(n), max(n)), floats(len(n), max(n), 97, grad=True))))
