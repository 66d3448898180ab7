"""trl: padding, pixel values per image, log-probabilities row by row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.wild import sources
from tests.wild.batches import floats, ids, mask, over
from tests.wild.case import Program, Verdict, case


def _trl() -> Any:
    root = sources.use("trl")
    sources.bare(root, "trl", "trl.trainer")
    return sources.lenient("trl.trainer.utils")


@case("trl")
def trl_pad_documents() -> Program:
    pad = _trl().pad

    def call(row: Tensor, lengths: Tensor) -> Any:
        return pad(list(row.split(lengths.tolist())), padding_value=-100)

    return Program(call, over(lambda n: (ids(sum(n)), torch.tensor(n))))


@case(
    "trl",
    Verdict.PART,
    graphs=15,
    breaks=8,
    codes=["list-use", "python-lengths", "sequence-use"],
    why="a list of lengths is sliced by numbers that the program has, one sample after the other",
)
def trl_split_pixel_values() -> Program:
    """Pixel values per sample by grids, joined again."""
    module = _trl()

    def call(pixels: Tensor, grids: Tensor) -> Any:
        batch = dict(pixel_values=pixels, image_grid_thw=grids, num_images=[1] * grids.shape[0])
        split = module.split_pixel_values_by_grid(batch)
        return module.unsplit_pixel_values_by_grid({**split, "pixel_values": [x * 2 for x in split["pixel_values"]]})

    def batch(lengths: Any) -> Any:
        return floats(sum(lengths), 6, grad=True), torch.tensor([(1, 1, n) for n in lengths])

    return Program(call, over(batch))


@case("trl", Verdict.UNTOUCHED, graphs=4, loops=False)
def trl_selective_log_softmax() -> Program:
    """A loop over rows of one size: documents do not come into it."""
    select = _trl().selective_log_softmax

    def call(logits: Tensor, index: Tensor) -> Any:
        return select(logits, index)

    return Program(call, over(lambda n: (floats(len(n), max(n), 17, grad=True), ids(len(n), max(n), high=17))))


@case("trl", Verdict.UNTOUCHED, graphs=4, loops=False)
def trl_flush_left() -> Program:
    flush = _trl().flush_left
    return Program(flush, over(lambda n: (mask(n, "left").long(), ids(len(n), max(n)))))
