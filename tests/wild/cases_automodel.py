"""nemo-automodel: masks and poolings of vision towers, ids of documents, shifts of multi-token prediction."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.wild import sources
from tests.wild.batches import boundaries, floats, ids, over
from tests.wild.case import Program, Verdict, case

ABSENT = -1000
"""What stands for no document where rows of lengths are filled up."""

GRIDS = (
    ((1, 4, 6), (1, 6, 2)),
    ((1, 2, 4), (2, 6, 6), (1, 8, 4)),
    ((2, 4, 4),) * 4,
    ((1, 8, 6), (1, 2, 2), (3, 4, 4), (1, 10, 8), (1, 6, 6)),
)
"""Frames, rows and columns of the images of every batch."""


def _models(name: str) -> Any:
    root = sources.use("nemo-automodel")
    models, module = "nemo_automodel.components.models", name.split(".")[0]
    packages = ("nemo_automodel", "nemo_automodel.components", models, f"{models}.{module}", f"{models}.common")
    sources.bare(root, *packages, f"{models}.common.mtp", "nemo_automodel.shared", "nemo_automodel.components.utils")
    return sources.lenient(f"{models}.{name}")


def _rows(lengths: Sequence[int]) -> Tensor:
    """The documents of two rows ``[2, N + 1]``, filled up; the second has them the other way round."""
    return torch.tensor([[*lengths, ABSENT], [*reversed(lengths), ABSENT]])


def _qkv(lengths: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (floats(sum(lengths), 2, 8, grad=True, seed=i) for i in range(3))
    return q, k, v, boundaries(lengths), boundaries(lengths)


def _images(width: int) -> Any:
    def batch(grid: Any) -> Any:
        return floats(sum(t * h * w for t, h, w in grid), width, grad=True), torch.tensor(grid)

    return over(batch, GRIDS)


# === Attention ================================================================================================


@case("nemo-automodel")
def automodel_kimi_vl_attention() -> Program:
    """A mask written image by image, by boundaries that are tensors, for torch's attention."""
    return Program(_models("kimivl.model").vision_attention_sdpa, over(_qkv))


@case("nemo-automodel")
def automodel_kimi_k3_attention() -> Program:
    """The same for attention that is written out."""
    return Program(_models("kimi_k3.vision").eager_attention, over(_qkv))


def _rice(name: str) -> Program:
    torch.manual_seed(0)
    attention = getattr(_models("llava_onevision.rice_vit"), name)(16, num_heads=2)

    def batch(lengths: Sequence[int]) -> Any:
        total = sum(lengths)
        return floats(total, 16, grad=True), boundaries(lengths), (floats(total, 8), floats(total, 8, seed=1))

    return Program(attention, over(batch))


@case("nemo-automodel")
def automodel_rice_attention() -> Program:
    """A mask of large negative numbers, added to the scores."""
    return _rice("RiceAttention")


@case("nemo-automodel")
def automodel_rice_sdpa_attention() -> Program:
    return _rice("RiceSdpaAttention")


# === Images ===================================================================================================


@case("nemo-automodel")
def automodel_rice_positions() -> Program:
    """Positions of patches by rows of sizes, which are tensors."""
    tower = _models("llava_onevision.rice_vit").RiceTransformer
    own = types.SimpleNamespace(spatial_merge_size=2, rotary_pos_emb=lambda n: torch.arange(64.0).view(32, 2))

    def call(grid: Tensor) -> Any:
        return tower.rot_pos_emb(own, grid)

    return Program(call, over(lambda grid: (torch.tensor(grid),), GRIDS))


@case("nemo-automodel")
def automodel_kimi_k25_merger() -> Program:
    """Mean over the frames of every video, and its patches in blocks."""
    merger = _models("kimi_k25_vl.model").tpool_patch_merger

    def call(x: Tensor, grid: Tensor) -> Any:
        return torch.cat(merger(x, grid))

    return Program(call, _images(6))


@case("nemo-automodel")
def automodel_kimi_k25_table() -> Program:
    """Positions interpolated from a table of another size, and those of frames."""
    torch.manual_seed(0)
    table = _models("kimi_k25_vl.model").Learnable2DInterpPosEmbDividedFixed(6, 6, 4, 8)
    return Program(table, _images(8), tolerance=1e-3)


@case("nemo-automodel")
def automodel_kimi_vl_table() -> Program:
    torch.manual_seed(0)
    table = _models("kimivl.model").Learnable2DInterpPosEmb(6, 6, 8)

    def batch(grid: Any) -> Any:
        sizes = [(h, w) for _, h, w in grid]
        return floats(sum(h * w for h, w in sizes), 8, grad=True), torch.tensor(sizes)

    return Program(table, over(batch, GRIDS), tolerance=1e-3)


@case("nemo-automodel")
def automodel_muse_glimmer_shuffle() -> Program:
    """Patches of every image in blocks; the sizes are tensors."""
    tower = _models("muse_glimmer.vision").MuseGlimmerVisionEncoder
    own = types.SimpleNamespace(config=types.SimpleNamespace(merge_size=2))

    def call(x: Tensor, grid: Tensor) -> Any:
        return tower._pixel_shuffle(own, x, grid)

    return Program(call, _images(6))


@case("nemo-automodel")
def automodel_muse_glimmer_windows() -> Program:
    windows = _models("muse_glimmer.vision").get_vision_window_index

    def call(grid: Tensor) -> Any:
        return windows(grid, 2, 56, 14)

    return Program(call, over(lambda grid: (torch.tensor(grid),), GRIDS))


@case("nemo-automodel")
def automodel_muse_glimmer_table() -> Program:
    """Corners and weights of an interpolation, lists of them for every corner."""
    table = _models("muse_glimmer.vision").get_vision_bilinear_indices_and_weights

    def call(grid: Tensor) -> Any:
        return table(grid, 6, 2)

    return Program(call, over(lambda grid: (torch.tensor(grid),), GRIDS))


@case("nemo-automodel")
def automodel_glm5_next_positions() -> Program:
    positions = _models("glm5_next.vision")._vision_position_ids

    def call(grid: Tensor) -> Any:
        return positions(grid, 2)

    return Program(call, over(lambda grid: (torch.tensor(grid),), GRIDS))


def _minimax() -> Any:
    return _models("minimax_m3_vl.vision_encoder").MiniMaxM3VisionTransformer


@case("nemo-automodel")
def automodel_minimax_mask() -> Program:
    """Sizes are numbers of Python."""
    mask = _minimax()._block_diag_mask
    return Program(lambda grid: mask(grid, torch.device("cpu")), over(lambda g: ([list(s) for s in g],), GRIDS))


@case("nemo-automodel")
def automodel_minimax_rope() -> Program:
    rope = _minimax()._rope_position_freqs
    own = types.SimpleNamespace(spatial_merge_size=2, inv_freq=torch.tensor([1.0, 0.1]))
    return Program(lambda grid: rope(own, grid.tolist(), None), over(lambda g: (torch.tensor(g),), GRIDS))


# === Documents ================================================================================================


@case(
    "nemo-automodel",
    Verdict.REFUSED,
    breaks=2,
    codes=["length-branch"],
    why="a loop over the rows of a batch, each with documents of its own",
)
def automodel_document_ids_of_rows() -> Program:
    """Ids by rows of lengths, in which numbers stand for no document."""
    build = _models("deepseek_v4.cp").build_packed_seq_ids

    def call(lengths: Tensor, total: int) -> Any:
        return build(lengths, seq_len=total, device=lengths.device)

    return Program(call, over(lambda n: (_rows(n), sum(n))))


@case(
    "nemo-automodel",
    Verdict.REFUSED,
    codes=["lengths-unknown"],
    why="a loop over the rows of a batch, whose documents end with the row, and whose lengths are those that count",
)
def automodel_document_ids_of_kimi() -> Program:
    build = _models("kimi_linear.cp").doc_ids_from_seq_lens
    return Program(build, over(lambda n: (_rows(n), sum(n) + 3)))


@case(
    "nemo-automodel",
    Verdict.REFUSED,
    graphs=5,
    breaks=6,
    codes=["frame-not-compiled", "graph-break", "lengths-unknown"],
    why="a loop over the rows of a batch, each with documents of its own, and numbers of two matrices",
)
def automodel_layout_of_rows() -> Program:
    """Documents of rows at starts that divide by four."""
    layout = _models("deepseek_v41.packing").packed_layout

    def call(lengths: Tensor, total: int) -> Any:
        return layout(lengths, seq_lens_padded=None, input_shape=(2, total), alignment=4)

    return Program(call, over(lambda n: (_rows(n), sum(n))))


@case("nemo-automodel", Verdict.UNTOUCHED, loops=False)
def automodel_shift_of_packed_rows() -> Program:
    """A shift that keeps to the ids of documents by itself."""
    shift = _models("common.mtp.mtp").shift_packed_tensor

    def call(tokens: Tensor, numbers: Tensor) -> Any:
        return shift(tokens, depth=2, seq_idx=numbers)

    def batch(lengths: Sequence[int]) -> Any:
        numbers = torch.cat([torch.full((n,), i + 1) for i, n in enumerate(lengths)])[None]
        return ids(1, sum(lengths)), numbers

    return Program(call, over(batch))


@case("nemo-automodel", Verdict.UNTOUCHED, loops=False)
def automodel_ids_for_shifts() -> Program:
    """Ids of the documents of every row, for the shifts of multi-token prediction; the loop is over rows."""
    expand = _models("common.mtp.mtp")._packed_seq_ids_from_padded_lengths

    def call(lengths: Tensor, total: int) -> Any:
        return expand(lengths, batch_size=2, seq_len=total, device=lengths.device)

    return Program(call, over(lambda n: (_rows(n), sum(n))))
