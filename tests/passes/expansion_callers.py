"""More programs with an expansion: what multimodal code does with boundaries, each as people write it.

As in `expansion_programs`: every program is ``program(input_ids, features, sizes, cu_seqlens, after=None)``, and
``after`` is what a caller that knows better passes for what is cut behind the expansion. Only the names of the
arguments say what the boundaries count, or a declaration.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import packpass
from packpass import ops
from tests.passes.expansion_programs import attend, embed, heads, last_slots, repeated, total_of, widths_of


@torch.library.custom_op("packpass_tests::thd_attention", mutates_args=())
def thd_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_kv: Tensor,
    cu_seqlens_q_padded: Tensor,
    cu_seqlens_kv_padded: Tensor,
) -> Tensor:
    """A kernel with all four sets: means of a document's keys for its queries, 0 in slots that pad."""
    out = torch.zeros_like(q)
    sets = (cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded)
    cu_q, cu_k, slots_q, slots_k = (cu.tolist() for cu in sets)
    for d in range(len(cu_q) - 1):
        queries = slice(slots_q[d], slots_q[d] + cu_q[d + 1] - cu_q[d])
        keys = slice(slots_k[d], slots_k[d] + cu_k[d + 1] - cu_k[d])
        out[queries] = q[queries] + (k * v)[keys].mean(0)
    return out


@thd_attention.register_fake
def _(q: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(q)


@torch.library.custom_op("packpass_tests::bounded_attention", mutates_args=())
def bounded_attention(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
    """A kernel that is launched for documents up to a length."""
    out = ops.varlen_attention(q, k, v, cu_seqlens)
    return torch.where((ops.position_ids(cu_seqlens, q.shape[0]) < max_seqlen)[:, None, None], out, torch.nan)


@bounded_attention.register_fake
def _(q: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(q)


bounded_attention.register_autograd(lambda ctx, grad: (grad, grad, grad, None, None))


def masked(x: Tensor, document: Tensor) -> Tensor:
    q = heads(x).transpose(0, 1)[None]
    return F.scaled_dot_product_attention(q, q, q, attn_mask=document[:, None] == document[None])


def last_filled(x: Tensor) -> Tensor:
    """The naive shift of labels."""
    y = torch.roll(x, -1, -1)
    y[..., -1] = -100
    return y


# === What cuts the expanded row ===============================================================================


def repeated_documents(x: Tensor, cu: Tensor) -> Tensor:
    return masked(x, torch.repeat_interleave(torch.arange(cu.shape[0] - 1), cu.diff(), output_size=x.shape[1]))


def repeated_starts(x: Tensor, cu: Tensor) -> Tensor:
    starts = torch.repeat_interleave(cu[:-1], cu[1:] - cu[:-1], output_size=x.shape[1])
    return attend(x + (torch.arange(x.shape[1]) - starts)[None, :, None], cu)


def summed_lengths(x: Tensor, cu: Tensor) -> Tensor:
    """Documents looked up by the ends that lengths add up to."""
    document = torch.searchsorted(torch.diff(cu).cumsum(0), torch.arange(x.shape[1]), right=True)
    return attend(x, cu) * document[:, None, None]


def compared_with_slots(x: Tensor, cu: Tensor) -> Tensor:
    """No call but a comparison takes the boundaries."""
    return masked(x, (torch.arange(x.shape[1])[:, None] >= cu[None, 1:]).sum(-1))


def marked_starts(x: Tensor, cu: Tensor) -> Tensor:
    starts = torch.zeros(x.shape[1], dtype=torch.int64)
    starts[cu[1:-1].long()] = 1
    return attend(x, cu) + masked(x, starts.cumsum(0)).sum()


def written_loop(x: Tensor, cu: Tensor) -> Tensor:
    y = x.clone()
    for i in range(cu.shape[0] - 1):
        start, end = cu[i], cu[i + 1]
        y[:, start:end] = torch.roll(x[:, start:end], -1, 1)
    return attend(y, cu)


def appended_row(x: Tensor, cu: Tensor) -> Tensor:
    """The rest of the row as a last document: its end is the row's, whichever boundaries there are."""
    return attend(x, F.pad(cu, (0, 1), value=x.shape[1]))


def bounded(x: Tensor, cu: Tensor, longest: int) -> Tensor:
    q = heads(x)
    return bounded_attention(q, q, q, cu, longest)


def longest_on_the_host(x: Tensor, cu: Tensor) -> Tensor:
    """The kernel's bound is read from the boundaries, and goes through a checkpoint."""
    longest = (cu[1:] - cu[:-1]).max().item()
    return checkpoint(bounded, x, cu, longest, use_reentrant=False)


def filled_by_parts(x: Tensor, cu: Tensor) -> Tensor:
    """Parts that have to fill the row: a check that speaks of the row after expansion."""
    torch._assert_async(cu[-1] == x.shape[1])
    return attend(x, cu)


def inverse_lengths(x: Tensor, cu: Tensor) -> Tensor:
    """A weight per document, looked up for every slot."""
    weights = 1.0 / cu.diff().clamp(min=1).float()
    document = (torch.bucketize(torch.arange(x.shape[1]), cu, right=True) - 1).clamp(0, cu.shape[0] - 2)
    return attend(x, cu) * weights[document][:, None, None]


def written_mask(x: Tensor, cu: Tensor) -> Tensor:
    """The loop becomes a comparison of documents, which are those of the expanded row."""
    mask = torch.eye(x.shape[1], dtype=torch.bool)
    for i in range(cu.shape[0] - 1):
        start, end = cu[i], cu[i + 1]
        mask[start:end, start:end] = True
    q = heads(x).transpose(0, 1)[None]
    return attend(x, cu) + F.scaled_dot_product_attention(q, q, q, attn_mask=mask).sum()


CUTS = (
    repeated_documents, repeated_starts, summed_lengths, compared_with_slots, marked_starts, written_loop, appended_row,
    inverse_lengths, longest_on_the_host, filled_by_parts, written_mask,
)  # fmt: skip


# === What must not be made again of other boundaries ==========================================================


def appended_old_length(x: Tensor, cu: Tensor, ids: Tensor) -> Tensor:
    return attend(x, torch.cat([cu, cu.new_full((1,), ids.shape[1])]))


def padded_with_old_length(x: Tensor, cu: Tensor, ids: Tensor) -> Tensor:
    return attend(x, F.pad(cu, (0, 1), value=ids.shape[1]))


def limited_by_old_length(x: Tensor, cu: Tensor, ids: Tensor) -> Tensor:
    return attend(x, cu.clamp(max=ids.shape[1]))


def chosen_by_old_length(x: Tensor, cu: Tensor, ids: Tensor) -> Tensor:
    return attend(x, torch.where(cu < ids.shape[1], cu, ids.shape[1]))


def numbered_mask(x: Tensor, cu: Tensor, ids: Tensor) -> Tensor:
    """The loop stays as it is, so the call must, too."""
    bias = torch.zeros(x.shape[1], x.shape[1])
    for i in range(cu.shape[0] - 1):
        start, end = cu[i], cu[i + 1]
        bias[start:end, start:end] = i * 2
    q = heads(x).transpose(0, 1)[None]
    return attend(x, cu) + F.scaled_dot_product_attention(q, q, q, attn_mask=bias).sum()


def means(x: Tensor, cu: Tensor, ids: Tensor) -> Tensor:
    """Sums over documents are divided by lengths, which share no call with the row."""
    document = ops.segment_ids(cu, x.shape[1]).clamp(0, cu.shape[0] - 2).long()
    sums = torch.zeros(cu.shape[0] - 1, x.shape[2]).index_add(0, document, attend(x, cu).flatten(1))
    return sums / cu.diff().clamp(min=1)[:, None]


def means_in_place(x: Tensor, cu: Tensor, ids: Tensor) -> Tensor:
    document = ops.segment_ids(cu, x.shape[1]).clamp(0, cu.shape[0] - 2).long()
    sums = torch.zeros(cu.shape[0] - 1, x.shape[2])
    sums.index_add_(0, document, attend(x, cu).flatten(1))
    return sums * (1 / cu.diff().clamp(min=1))[:, None]


def mean_length(x: Tensor, cu: Tensor, ids: Tensor) -> Tensor:
    return attend(x, cu) * cu.diff().float().mean()


def table_of_the_longest(x: Tensor, cu: Tensor, ids: Tensor) -> Tensor:
    """Positions of longer documents would be behind the end of the table."""
    longest = int(cu.diff().max())
    table, slots = torch.arange(longest), torch.arange(x.shape[1])
    start = cu[(torch.bucketize(slots, cu, right=True) - 1).clamp(max=cu.shape[0] - 2)]
    return bounded(x, cu, longest) + table[(slots - start).clamp(max=longest - 1)][:, None, None]


MIXED = (
    appended_old_length, padded_with_old_length, limited_by_old_length, chosen_by_old_length, numbered_mask, means,
    means_in_place, mean_length, table_of_the_longest,
)  # fmt: skip


def scaled(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor) -> Tensor:
    """The code multiplies boundaries as it multiplies tokens."""
    ids = packpass.packed(ids, cu)
    x = torch.repeat_interleave(embed(ids), torch.full_like(ids[0], 5), dim=1, output_size=5 * ids.shape[1])
    return attend(x, cu * 5)


def displaced(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor) -> Tensor:
    """The sum that stands before a token does not start at 0."""
    ids = packpass.packed(ids, cu)
    ends, start = widths_of(ids, sizes)[0].cumsum(0), torch.zeros(1, dtype=torch.int64)
    start[0] = 2
    at = torch.cat([start, ends[:-1]])
    x = torch.zeros(total_of(ids, features, sizes) + 9, 8).index_copy(0, at, embed(ids[0]))
    return attend(x[None], cu)


# === Programs =================================================================================================


def both_rows(
    input_ids: Tensor, features: Tensor, sizes: Tensor, cu_seqlens: Tensor, after: Tensor | None = None
) -> Any:
    """Documents of the row before expansion are numbered as well, with lengths as widths."""
    after = cu_seqlens if after is None else after
    number = torch.arange(cu_seqlens.shape[0] - 1)
    document = torch.repeat_interleave(number, cu_seqlens.diff(), output_size=input_ids.shape[1])
    return attend(last_slots(input_ids, features, sizes), after), document * input_ids


def two_steps(ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """Images expand, then audio does; both rows are cut by the same boundaries."""
    images = torch.where(ids == 0, 3, 1)[0]
    x = torch.repeat_interleave(ids, images, dim=1, output_size=14)
    audio = torch.where(x == 9, 2, 1)[0]
    y = torch.repeat_interleave(x, audio, dim=1, output_size=16)
    return attend(embed(y), cu), attend(embed(x), cu)


def one_row(input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Nothing expands but documents into their tokens."""
    number = torch.arange(cu_seqlens.shape[0] - 1)
    document = torch.repeat_interleave(number, cu_seqlens.diff(), output_size=input_ids.shape[1])
    return attend(embed(input_ids), cu_seqlens) * document[:, None, None]


def one_row_no_names(ids: Tensor, cu: Tensor) -> Tensor:
    return one_row(ids, cu)


def one_row_by_lengths(ids: Tensor, lengths: Tensor) -> Tensor:
    cu = F.pad(lengths.cumsum(0), (1, 0))
    document = torch.repeat_interleave(torch.arange(lengths.shape[0]), lengths, output_size=ids.shape[1])
    return attend(embed(ids), cu) * document[:, None, None]


def one_row_by_sums(ids: Tensor, cu: Tensor) -> Tensor:
    return summed_lengths(embed(ids), cu)


def shifted_labels(
    input_ids: Tensor, features: Tensor, sizes: Tensor, cu_seqlens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Naive shifts of both rows; the labels share no call with the row that attention sees."""
    total = total_of(input_ids, features, sizes)
    labels = torch.repeat_interleave(input_ids[0], widths_of(input_ids, sizes)[0], output_size=total)
    return attend(repeated(input_ids, features, sizes), cu_seqlens), last_filled(input_ids[0]), last_filled(labels)


def shifted_row(input_ids: Tensor, features: Tensor, sizes: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """A shift of the row that attention sees."""
    return shifted_labels_no_names(input_ids, features, sizes, cu_seqlens)


def shifted_labels_no_names(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    x = last_slots(ids, features, sizes)
    return attend(x, cu), last_filled(x[..., 0])
