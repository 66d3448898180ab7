"""Helpers of training frameworks: llamafactory, ms-swift, openrlhf, ring-flash-attn, torchtitan; and of speech."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.wild import sources
from tests.wild.batches import boundaries, floats, ids, mask, over, positions
from tests.wild.case import Program, Verdict, case

EVEN = ((4, 8), (16, 4, 8, 12), (64,) * 6, (100, 4, 32, 76, 12, 8, 52, 200))
"""Lengths that a ring of ranks can halve."""


@case("llamafactory", Verdict.UNTOUCHED, loops=False)
def llamafactory_mask_of_packed_rows() -> Program:
    """Documents told apart by the numbers of the mask."""
    root = sources.use("llamafactory")
    sources.bare(root, "llamafactory", "llamafactory.data", "llamafactory.extras", "llamafactory.model")
    prepare = sources.lenient("llamafactory.data.collator").prepare_4d_attention_mask

    def call(numbers: Tensor) -> Any:
        return prepare(numbers, torch.float32)

    def batch(lengths: Sequence[int]) -> Any:
        return torch.cat([torch.full((n,), i + 1) for i, n in enumerate(lengths)])[None]

    return Program(call, over(batch))


@case(
    "llamafactory",
    Verdict.PART,
    codes=["lengths-unknown"],
    graphs=6,
    breaks=4,
    loops=False,
    why="how many documents there are is read from the largest number in the mask",
)
def llamafactory_lengths_of_packed_rows() -> Program:
    """A loop over the numbers that documents have, up to the largest: it cuts nothing."""
    root = sources.use("llamafactory")
    sources.bare(root, "llamafactory", "llamafactory.extras", "llamafactory.model", "llamafactory.model.model_utils")
    lengths_of = sources.lenient("llamafactory.model.model_utils.packing").get_seqlens_in_batch

    def batch(lengths: Sequence[int]) -> Any:
        return torch.cat([torch.full((n,), i + 1) for i, n in enumerate(lengths)])[None]

    return Program(lengths_of, over(batch))


@case("ms-swift")
def swift_zigzag_shard() -> Program:
    """The first and the last part but so many of every document."""
    root = sources.use("ms-swift")
    sources.bare(root, "swift", "swift.sequence_parallel", "swift.utils", "swift.loss")
    split = sources.lenient("swift.sequence_parallel.sequence_parallel").SequenceParallel._split_packed
    rank = types.SimpleNamespace(rp_world_size=2, rp_rank=0)

    def call(x: Tensor, cu_seqlens: Tensor) -> Any:
        return split(rank, x, cu_seqlens)

    return Program(call, over(lambda n: (floats(1, sum(n), 6, grad=True), boundaries(n)), EVEN))


@case("ring-flash-attn")
def ring_halves() -> Program:
    """A mask of the first halves of documents."""
    sources.bare(sources.use("ring-flash-attn"), "ring_flash_attn")
    half = sources.lenient("ring_flash_attn.zigzag_ring_flash_attn_varlen").get_half_index

    def call(cu_seqlens: Tensor) -> Any:
        return half(cu_seqlens, front=True), half(cu_seqlens, front=False)

    return Program(call, over(lambda n: (boundaries(n),), EVEN))


@case("openrlhf", Verdict.UNTOUCHED, loops=False)
def openrlhf_reward() -> Program:
    """Rewards at the last token of padded rows."""
    sources.bare(sources.use("openrlhf"), "openrlhf", "openrlhf.models", "openrlhf.utils")
    reward = sources.lenient("openrlhf.models.utils").compute_reward

    def call(r: Tensor, kl: Tensor, tokens: Tensor) -> Any:
        return reward(r, 0.1, kl, tokens)

    return Program(call, over(lambda n: (floats(len(n)), floats(len(n), max(n), grad=True), mask(n))))


@case(
    "torchtitan",
    Verdict.REFUSED,
    codes=["lengths-unknown", "no-rule"],
    loops=False,
    why="where documents begin is searched row by row",
)
def torchtitan_boundaries_from_positions() -> Program:
    """Where positions start again, in a loop over rows."""
    root = sources.use("torchtitan")
    sources.bare(root, "torchtitan", "torchtitan.models", "torchtitan.models.common", "torchtitan.distributed")
    create = sources.lenient("torchtitan.models.common.attention").create_varlen_metadata_for_document
    return Program(create, over(positions))


def _nemo(name: str) -> Any:
    sources.use("wrapt")  # its decorators
    root = sources.use("nemo-toolkit")
    names = (
        "nemo",
        "nemo.collections",
        "nemo.collections.asr",
        "nemo.collections.asr.modules",
        "nemo.core",
        "nemo.utils",
    )
    sources.bare(root, *names, "nemo.collections.speechlm2", "nemo.collections.speechlm2.parts")
    return sources.lenient(name)


@case("nemo-toolkit")
def nemo_unpadded_recordings() -> Program:
    """Embeddings of padded recordings, each cut to its length."""
    cut = _nemo("nemo.collections.speechlm2.parts.encoder_chunking")._unpad_audio_embeddings

    def call(embeddings: Tensor, lengths: Tensor) -> Any:
        return torch.cat(cut(embeddings, lengths))

    return Program(call, over(lambda n: (floats(len(n), max(n), 4, grad=True), torch.tensor(n))))


@case("nemo-toolkit")
def nemo_joined_and_padded() -> Program:
    """Two batches of recordings, each padded, joined per recording and padded again."""
    joined = _nemo("nemo.collections.asr.modules.sortformer_modules").SortformerModules.concat_and_pad

    def call(a: Tensor, b: Tensor, a_lengths: Tensor, b_lengths: Tensor) -> Any:
        return joined([a, b], [a_lengths, b_lengths])

    def batch(lengths: Sequence[int]) -> Any:
        rows = (len(lengths), max(lengths), 4)
        one = torch.tensor(lengths)
        return floats(*rows, grad=True), floats(*rows, grad=True, seed=1), one, one.flip(0)

    return Program(call, over(batch))


@case("speechbrain", Verdict.UNTOUCHED, loops=False)
def speechbrain_masks() -> Program:
    """Masks from relative lengths of recordings."""
    sources.bare(
        sources.use("speechbrain"), "speechbrain", "speechbrain.dataio", "speechbrain.utils", "speechbrain.nnet"
    )
    length_to_mask = sources.lenient("speechbrain.dataio.dataio").length_to_mask

    def call(lengths: Tensor) -> Any:
        return length_to_mask(lengths, 256)

    return Program(call, over(lambda n: (torch.tensor(n),)))


@case("speechbrain")
def speechbrain_statistics_of_recordings() -> Program:
    """Means and deviations over the valid part of every recording; lengths are parts of the longest."""
    sources.bare(
        sources.use("speechbrain"), "speechbrain", "speechbrain.dataio", "speechbrain.utils", "speechbrain.nnet"
    )
    pooling = sources.lenient("speechbrain.nnet.pooling").StatisticsPooling()

    def batch(lengths: Sequence[int]) -> Any:
        return floats(len(lengths), max(lengths), 6, grad=True), torch.tensor(lengths) / max(lengths)

    return Program(pooling, over(batch), tolerance=1e-2)


@case("openrlhf", Verdict.UNTOUCHED, graphs=4, loops=False)
def openrlhf_log_probs() -> Program:
    sources.bare(sources.use("openrlhf"), "openrlhf", "openrlhf.models", "openrlhf.utils")
    log_probs = sources.lenient("openrlhf.models.utils").log_probs_from_logits
    return Program(log_probs, over(lambda n: (floats(len(n), max(n), 17, grad=True), ids(len(n), max(n), high=17))))
