"""AReaL: packing, aligning and unaligning of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tests.wild import megatron, sources
from tests.wild.batches import boundaries, floats, ids, mask, over, positions
from tests.wild.case import Program, Verdict, case


def _areal(name: str) -> Any:
    root = sources.use("areal")
    sources.bare(
        root, "areal", "areal.utils", "areal.engine", "areal.engine.megatron_utils", "areal.infra", "areal.api"
    )
    return sources.lenient(name)


@case("areal")
def areal_pack_tensor_dict() -> Program:
    pack = _areal("areal.utils.data").pack_tensor_dict

    def batch(lengths: Sequence[int]) -> Any:
        rows = (len(lengths), max(lengths))
        return dict(input_ids=ids(*rows), attention_mask=mask(lengths), logprobs=floats(*rows, grad=True))

    return Program(pack, over(lambda n: (batch(n),)))


def _aligned(lengths: Sequence[int]) -> Any:
    return dict(
        input_ids=ids(sum(lengths)),
        position_ids=positions(lengths)[0],
        logprobs=floats(sum(lengths), grad=True),
        cu_seqlens=boundaries(lengths),
        max_seqlen=max(lengths),
    )


@case(
    "areal",
    Verdict.PART,
    graphs=10,
    breaks=7,
    codes=["frame-not-compiled"],
    why="in a loop over fields, a size is compared with the last boundary",
)
def areal_pad_packed_tensor_dict() -> Program:
    """Every document aligned to a multiple of 8."""
    pad = _areal("areal.utils.data").pad_packed_tensor_dict

    def call(data: dict[str, Any]) -> Any:
        return pad(data, 1024, seq_align_to=8)

    return Program(call, over(lambda n: (_aligned(n),)))


@case("areal")
def areal_unpad_logits() -> Program:
    """Aligned documents back to packed ones."""
    unpad = _areal("areal.utils.data").unpad_logits

    def call(logits: Tensor, cu_seqlens: Tensor, old: Tensor) -> Any:
        return unpad(logits, 3, cu_seqlens, old)

    def batch(lengths: Sequence[int]) -> Any:
        padded = [-(-n // 8) * 8 for n in lengths]
        return floats(sum(padded) + 3, 5, grad=True), boundaries(padded), boundaries(lengths)

    return Program(call, over(batch))


@case(
    "areal",
    Verdict.REFUSED,
    breaks=8,
    codes=["frame-not-compiled"],
    loops=False,
    why="what any() says of the lengths is compared with a number, and decides whether the program raises",
)
def areal_split_for_one_rank() -> Program:
    megatron.megatron("0.16")
    split = _areal("areal.engine.megatron_utils.packed_context_parallel").preprocess_packed_seqs_context_parallel

    def call(input_ids: Tensor, cu_seqlens: Tensor) -> Any:
        return split(input_ids, cu_seqlens)[0]

    return Program(call, over(lambda n: (ids(sum(n)), boundaries(n))))
