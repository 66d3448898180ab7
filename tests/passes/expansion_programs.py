"""Programs in which placeholders expand into image tokens while the boundaries stay as they were.

Every program is ``program(ids, features, sizes, cu_seqlens, after=None)``: int64 ids ``[1, T]`` with `IMAGE` for an
image, features ``[sum(sizes), H]`` of all images, int64 ``[images]`` sizes, and boundaries ``[N+1]`` of the row of ids.
What is cut behind the expansion is cut by ``after``, which a caller that knows better passes; the default is what
people have: the boundaries they were given. So ``program(..., after=right)`` is what the rewritten program must do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import packpass
from packpass import ops

IMAGE, VOCABULARY, WIDTH = 0, 11, 8
Program = Callable[..., Any]


def embed(ids: Tensor) -> Tensor:
    table = torch.arange(VOCABULARY * WIDTH, dtype=torch.float32).sin().view(VOCABULARY, WIDTH)
    return F.embedding(ids, table)


def widths_of(ids: Tensor, sizes: Tensor) -> Tensor:
    return torch.ones_like(ids).masked_scatter(ids == IMAGE, sizes)


def total_of(ids: Tensor, features: Tensor, sizes: Tensor) -> int:
    return ids.shape[1] - sizes.shape[0] + features.shape[0]


def fill_images(x: Tensor, text: Tensor, features: Tensor) -> Tensor:
    return x.masked_scatter(~text[..., None], features)


# === Expansions: [1, E, H] of ids, features, sizes ============================================================


def last_slots(ids: Tensor, features: Tensor, sizes: Tensor) -> Tensor:
    total = total_of(ids, features, sizes)
    at = (widths_of(ids, sizes).cumsum(-1) - 1)[0]
    x, text = features.new_zeros(1, total, WIDTH), torch.zeros(1, total, dtype=torch.bool)
    x[:, at] = embed(ids)
    text[:, at] = ids != IMAGE
    return fill_images(x, text, features)


def first_slots(ids: Tensor, features: Tensor, sizes: Tensor) -> Tensor:
    total = total_of(ids, features, sizes)
    widths = widths_of(ids, sizes)[0]
    at = torch.cumsum(widths, 0) - widths
    x = torch.zeros(total, WIDTH).index_copy(0, at, embed(ids[0]))
    text = torch.zeros(total, dtype=torch.bool).index_copy(0, at, ids[0] != IMAGE)
    return fill_images(x, text, features)[None]


def sums_before(ids: Tensor, features: Tensor, sizes: Tensor) -> Tensor:
    total = total_of(ids, features, sizes)
    ends = widths_of(ids, sizes).squeeze(0).cumsum(0)
    at = torch.cat([ends.new_zeros(1), ends[:-1]])
    index = at[:, None].expand(-1, WIDTH)
    x = torch.zeros(total, WIDTH).scatter(0, index, embed(ids[0]))
    text = torch.zeros(total, dtype=torch.bool).scatter_(0, at, ids[0] != IMAGE)
    return fill_images(x, text, features)[None]


def padded_sums(ids: Tensor, features: Tensor, sizes: Tensor) -> Tensor:
    total = total_of(ids, features, sizes)
    at = F.pad(widths_of(ids, sizes)[0].cumsum(0), (1, 0))[:-1]
    x = torch.zeros(total, WIDTH)
    x.index_copy_(0, at, embed(ids[0]))
    text = torch.zeros(total, dtype=torch.bool)
    text.index_copy_(0, at, ids[0] != IMAGE)
    return fill_images(x, text, features)[None]


def extra_slots(ids: Tensor, features: Tensor, sizes: Tensor) -> Tensor:
    """Positions as the row's own plus what came in before."""
    total = total_of(ids, features, sizes)
    extra = torch.zeros_like(ids).masked_scatter(ids == IMAGE, sizes - 1)
    at = torch.arange(ids.shape[1])[None] + extra.cumsum(-1)
    x, text = torch.zeros(1, total, WIDTH), torch.zeros(1, total, dtype=torch.bool)
    x.index_put_((torch.zeros_like(at), at), embed(ids))
    text = text.index_put((torch.zeros_like(at), at), ids != IMAGE)
    return fill_images(x, text, features)


def mutated_lengths(ids: Tensor, features: Tensor, sizes: Tensor) -> Tensor:
    """As megatron writes it: lengths are filled in place, then summed."""
    total = total_of(ids, features, sizes)
    is_image = ids == IMAGE
    lengths = is_image.long().clone()
    lengths.masked_scatter_(is_image, sizes - 1)
    at = torch.cumsum(lengths + 1, dim=-1) - 1
    x, text = torch.zeros(1, total, WIDTH), torch.ones(1, total, dtype=torch.bool)
    x[torch.zeros_like(at), at] = embed(ids)
    text = torch.zeros(1, total, dtype=torch.bool)
    text[torch.zeros_like(at), at] = ~is_image
    return fill_images(x, text, features)


def repeated(ids: Tensor, features: Tensor, sizes: Tensor) -> Tensor:
    total = total_of(ids, features, sizes)
    widths = widths_of(ids, sizes)[0]
    x = torch.repeat_interleave(embed(ids), widths, dim=1, output_size=total)
    text = torch.repeat_interleave(ids[0] != IMAGE, widths, output_size=total)
    return fill_images(x, text[None], features)


def looked_up(ids: Tensor, features: Tensor, sizes: Tensor) -> Tensor:
    total = total_of(ids, features, sizes)
    token = torch.searchsorted(widths_of(ids, sizes)[0].cumsum(0), torch.arange(total), right=True)
    expanded = ids[0][token]
    return fill_images(embed(expanded), expanded != IMAGE, features)[None]


def token_numbers(ids: Tensor, features: Tensor, sizes: Tensor) -> Tensor:
    total = total_of(ids, features, sizes)
    token = torch.repeat_interleave(widths_of(ids, sizes)[0], output_size=total)
    expanded = ids[0].index_select(0, token)
    return fill_images(embed(expanded), expanded != IMAGE, features)[None]


def llava_merge(ids: Tensor, features: Tensor, sizes: Tensor) -> Tensor:
    """The merge of the first LLaVA models: one width for all images, text put at chosen indices."""
    images = features.unflatten(0, (sizes.shape[0], -1))
    num_images, num_patches, width = images.shape
    special = ids == IMAGE
    max_dim = num_images * (num_patches - 1) + ids.shape[1]
    batch_indices, text_indices = torch.where(ids != IMAGE)
    new_positions = torch.cumsum((special * (num_patches - 1) + 1), -1) - 1
    text_to_overwrite = new_positions[batch_indices, text_indices]
    final = torch.zeros(ids.shape[0], max_dim, width)
    final[batch_indices, text_to_overwrite] = embed(ids)[batch_indices, text_indices]
    image_to_overwrite = torch.full((ids.shape[0], max_dim), True)
    image_to_overwrite[batch_indices, text_to_overwrite] = False
    final[image_to_overwrite] = features
    return final


EXPANSIONS = (
    last_slots, first_slots, sums_before, padded_sums, extra_slots, mutated_lengths, repeated, looked_up, token_numbers,
)  # fmt: skip


# === Uses of boundaries on the expanded row ===================================================================


def heads(x: Tensor) -> Tensor:
    return x[0].unflatten(-1, (2, -1))


def attend(x: Tensor, cu: Tensor) -> Tensor:
    q = heads(x)
    return ops.varlen_attention(q, 2 * q, q + 1, cu, is_causal=True)


def block_diagonal(x: Tensor, cu: Tensor) -> Tensor:
    q = heads(x).transpose(0, 1)[None]
    document = torch.bucketize(torch.arange(x.shape[1]), cu, right=True)
    mask = document[:, None] == document[None]
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def ranges(x: Tensor, cu: Tensor) -> Tensor:
    """A mask without a search: which boundaries lie before a slot."""
    passed = (torch.arange(x.shape[1])[:, None] >= cu[None]).sum(-1)
    return torch.ops.packpass.varlen_attention.default(*[heads(x)] * 3, cu, cu, False, None) + passed[:, None, None]


def positions(x: Tensor, cu: Tensor) -> Tensor:
    return x + ops.position_ids(cu, x.shape[1])[None, :, None]


def positions_by_hand(x: Tensor, cu: Tensor) -> Tensor:
    slots = torch.arange(x.shape[1])
    starts = torch.cat([torch.zeros_like(cu[:1]), cu])
    return x * (slots - starts[torch.searchsorted(cu, slots, right=True)])[None, :, None]


def of_segments(x: Tensor, cu: Tensor) -> Tensor:
    return x * ops.segment_ids(cu, x.shape[1])[None, :, None]


def mean_of_document(x: Tensor, cu: Tensor) -> Tensor:
    """Lengths of documents are looked up: made of the boundaries that cut the row."""
    slots = torch.arange(x.shape[1])
    document = (torch.bucketize(slots, cu, right=True) - 1).clamp(0, cu.shape[0] - 2)
    return x[0] / torch.diff(cu)[document][:, None]


def last_of_document(x: Tensor, cu: Tensor) -> Tensor:
    out = attend(x, cu)
    return out[cu[1:].long() - 1]


def rolled(x: Tensor, cu: Tensor) -> Tensor:
    return ops.packed_roll(x, cu, -1, dim=1)


def in_a_checkpoint(x: Tensor, cu: Tensor) -> Tensor:
    return checkpoint(attend, x, cu, use_reentrant=False)


def early_positions(x: Tensor, cu: Tensor) -> Tensor:
    """Two layers with one set of positions."""
    at = ops.position_ids(cu.long(), x.shape[1])[None, :, None]
    x = x + at
    return x + attend(x, cu).flatten(1) + at


USES = (
    attend, block_diagonal, ranges, positions, positions_by_hand, of_segments, mean_of_document, last_of_document,
    rolled, in_a_checkpoint, early_positions,
)  # fmt: skip


# === Programs =================================================================================================


def declared(expand: Program, use: Program) -> Program:
    """The row of ids is declared."""

    def program(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor, after: Tensor | None = None) -> Tensor:
        ids = packpass.packed(ids, cu)
        return use(expand(ids, features, sizes), cu if after is None else after)

    return program


def named(expand: Program, use: Program) -> Program:
    """Only the names of the arguments say anything."""

    def program(
        input_ids: Tensor, features: Tensor, sizes: Tensor, cu_seqlens: Tensor, after: Tensor | None = None
    ) -> Tensor:
        return use(expand(input_ids, features, sizes), cu_seqlens if after is None else after)

    return program


def used(expand: Program, use: Program) -> Program:
    """The row of ids is cut by the same boundaries."""

    def program(
        ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor, after: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        next_ids = ops.packed_roll(ids, cu, -1, fill=-100)
        return use(expand(ids, features, sizes), cu if after is None else after), next_ids

    return program
