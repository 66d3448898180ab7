"""Loops that must be rewritten: documents that lie elsewhere in another tensor, such as the rows of a padded batch
(`passes.document_loops.elsewhere`)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import Args, program


@program("f[T,2] cu", min_len=1, tail=False, reads=1, graphs=3)
def into_padded_rows(x: Tensor, cu: Tensor) -> Tensor:
    n = cu.shape[0] - 1
    out = x.new_zeros(n, int((cu[1:] - cu[:-1]).max()), 2)
    for i in range(n):
        s, e = cu[i], cu[i + 1]
        out[i, : e - s] = x[s:e]
    return out


@program("f[T] cu")
def into_rows_of_a_constant_length(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.full((cu.shape[0] - 1, 200), -1.0)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i, : e - s] = x[s:e].flip(0)
    return out


@program("f[T] cu")
def to_the_right_of_padded_rows(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu.shape[0] - 1, 200)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i, 200 - (e - s) : 200] = x[s:e]
    return out


@program("f[T] cu")
def rows_first_then_slots(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu.shape[0] - 1, 200)
    for i in range(cu.shape[0] - 1):
        n = cu[i + 1] - cu[i]
        out[i][:n] = x[cu[i] : cu[i + 1]] * 2
    return out


@program("f[T,3] f[N,200] cu", graphs=3)
def packed_from_padded_rows(x: Tensor, rows: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[s:e] = rows[i, : e - s].unsqueeze(1) * x[s:e]
    return out


@program("f[N,200] cu", tail=False, graphs=3)
def list_of_unpadded_rows(rows: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    return torch.cat([rows[i, :n] for i, n in enumerate(lengths)])


@program("f[T,2] cu")
def other_gaps_between_documents(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu[1:] - cu[:-1]
    padded = F.pad(((lengths + 3) // 4 * 4).cumsum(0), (1, 0))
    out = x.new_zeros(400, 2)
    for i in range(cu.shape[0] - 1):
        out[padded[i] : padded[i] + lengths[i]] = x[cu[i] : cu[i + 1]]
    return out


@program("f[T] cu")
def gaps_by_numbers(x: Tensor, cu: Tensor) -> Tensor:
    begins = (cu[:-1] * 2).tolist()
    out = x.new_zeros(400)
    for b, s, e in zip(begins, cu[:-1].tolist(), cu[1:].tolist()):
        out[b : b + e - s] = x[s:e].flip(0)
    return out


@program("f[T] cu", lead_empty=False)
def a_number_in_every_row(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(cu.shape[0] - 1, 200)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        mask[i, : e - s] = 1
    return mask * x.sum()


@program("f[T] cu", depends=False)
def there_and_back(x: Tensor, cu: Tensor) -> Tensor:
    rows = x.new_zeros(cu.shape[0] - 1, 200)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        rows[i, : e - s] = x[s:e]
    rows = rows * 2 + 1
    out = torch.zeros_like(x)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[s:e] = rows[i, : e - s]
    return out


@program("f[T,2] cu", min_len=1, tail=False, reads=1, graphs=3)
def longest_read_before(x: Tensor, cu: Tensor) -> Tensor:
    n = len(cu) - 1
    longest = int((cu[1:] - cu[:-1]).max())
    out = x.new_zeros(n, longest, 2)
    for i in range(n):
        s, e = cu[i], cu[i + 1]
        out[i, : e - s] = x[s:e]
    return out


@program("f[T,2] cu", tail=False, reads=1)
def padded_to_multiples(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu[1:] - cu[:-1]
    padded = F.pad(((lengths + 3) // 4 * 4).cumsum(0), (1, 0))
    out = x.new_zeros(int(padded[-1]), 2)
    for i in range(len(cu) - 1):
        out[padded[i] : padded[i] + lengths[i]] = x[cu[i] : cu[i + 1]]
    return out


@program("f[T] cu", min_len=1, tail=False)
def last_tokens_of_each(x: Tensor, cu: Tensor) -> Tensor:
    """Windows that end before the document does, taken from a row of twice the length."""
    values, halves = torch.cat((x, x * 2)), (cu[1:] - cu[:-1] + 1) // 2
    parts = [values[e - n : e] for n, e in zip(halves.tolist(), cu[1:].tolist())]
    return torch.cat(parts)


@program("f[T] cu", tail=False)
def boundaries_of_numpy(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.cpu().numpy().tolist()
    return torch.cat([x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:])])


@program("f[T] cu", min_len=1)
def left_padded_by_a_negative_start(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu.shape[0] - 1, 200)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i, s - e :] = x[s:e]
    return out


@program("f[T] cu")
def left_padded_by_the_width(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu.shape[0] - 1, 200)
    width = out.shape[1]
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i, width - (e - s) :] = x[s:e]
    return out


@program("f[T] cu", min_len=1, tail=False, reads=1)
def stack_of_padded_to_the_longest(x: Tensor, cu: Tensor) -> Tensor:
    lengths = (cu[1:] - cu[:-1]).tolist()
    longest, rows = max(lengths), []
    for n, end in zip(lengths, cu[1:].tolist()):
        rows.append(F.pad(x[end - n : end], (0, longest - n)))
    return torch.stack(rows)


@program("f[T,2] cu", tail=False)
def stack_of_padded_to_a_constant(x: Tensor, cu: Tensor) -> Tensor:
    rows = [F.pad(x[s:e], (0, 0, 0, 200 - (e - s)), value=-1.0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.stack(rows)


@program("f[2,T] cu", tail=False)
def stack_of_left_padded(x: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        n = e - s
        rows.append(F.pad(x[:, s:e], (200 - n, 0)))
    return torch.stack(rows, 1)


@program("i[T] cu", tail=False)
def cut_off_at_a_constant(ids: Tensor, cu: Tensor) -> Tensor:
    """A negative pad cuts: documents of more than 5 tokens lose the rest."""
    rows = [F.pad(ids[s:e], (0, 5 - (e - s)), value=7) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.stack(rows)


@program("f[T] cu", tail=False)
def stack_of_padded_by_tensors(x: Tensor, cu: Tensor) -> Tensor:
    rows = [F.pad(x[s:e] * 2, (0, 200 - (e - s)), value=-1.0) for s, e in zip(cu[:-1], cu[1:])]
    return torch.stack(rows)


# ---------------------------------------------------------------- rows whose slots are another dimension


def _features_first(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """``[N, features, slots]`` and the length of each."""
    lengths = cu.diff()
    padded = torch.nn.utils.rnn.pad_sequence(list(x[: int(lengths.sum())].split(lengths.tolist())), batch_first=True)
    return padded.transpose(1, 2).detach().clone().requires_grad_(x.requires_grad), lengths


@program("f[T,3] cu", tail=False, wrap=_features_first, depends=False, graphs=3)
def padded_rows_with_features_in_between(x: Tensor, lengths: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i, n in enumerate(lengths.tolist()):
        out[i, :, :n] = x[i, :, :n].flip(1)
    return out


@program("f[T,3] cu", tail=False, wrap=_features_first, depends=False, graphs=3)
def rows_behind_each_other_from_features_first(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat([x[i, :, :n].cumsum(1) for i, n in enumerate(lengths.tolist())], 1)


@program("f[3,T] cu", tail=False, reads=1, graphs=3)
def batch_of_features_and_its_mask(x: Tensor, cu: Tensor) -> Any:
    lengths = cu.diff()
    longest = int(lengths.max())
    out, mask = x.new_zeros(len(lengths), 3, longest), torch.zeros(len(lengths), longest, dtype=torch.bool)
    for i, (part, n) in enumerate(zip(x.split(lengths.tolist(), 1), lengths.tolist())):
        out[i, :, :n] = part
        mask[i, :n] = True
    return out, mask


# === Several slots for each of the documents' ================================================================


@program("f[2*T,3] cu")
def two_slots_for_each(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[2 * s : 2 * e] = x[2 * s : 2 * e].flip(0)
    return out


@program("f[4*T] cu", exact=False, tail=False)
def patches_of_tokens(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[cu[i] * 4 : cu[i + 1] * 4].softmax(0) for i in range(len(cu) - 1)])


@program("f[3*T+5] cu")
def three_slots_for_each_and_a_tail(x: Tensor, cu: Tensor) -> Tensor:
    y = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        y[3 * s : 3 * e] = torch.roll(x[3 * s : 3 * e], -1, 0)
    return y


@program("f[2*T+4,3] cu", tail=False)
def two_slots_for_each_behind_four(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[2 * s + 4 : 2 * e + 4].cumsum(0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


def _some_below_zero(x: Tensor, cu: Tensor) -> Args:
    """A number for every row, of which some count from the row's end."""
    return x, cu.diff() % 8 - 3


@program("f[N,9,3] cu", wrap=_some_below_zero, depends=False, tail=False)
def up_to_the_smaller_of_two(x: Tensor, numbers: Tensor) -> Tensor:
    return torch.cat([x[i, : min(n, 4)] for i, n in enumerate(numbers.tolist())])


@program("f[N,9,3] cu", wrap=_some_below_zero, depends=False, tail=False)
def half_of_what_may_be_below_zero(x: Tensor, numbers: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i, n in enumerate(numbers.tolist()):
        out[i, : n // 2] = x[i, : n // 2] * 2
    return out


@program("f[N,9,3] cu", wrap=_some_below_zero, depends=False, tail=False)
def one_behind_the_smaller_of_two(x: Tensor, numbers: Tensor) -> Tensor:
    return torch.cat([x[i, 1 : min(n, 4) + 1] for i, n in enumerate(numbers.tolist())])


def _one_token_less(x: Tensor, cu: Tensor) -> Args:
    """A row that lacks the last token of every document."""
    lengths = cu.diff() % 5 + 1
    return x[: int(lengths.sum()) - len(lengths)], torch.cat([cu[:1], lengths.cumsum(0)])


@program("f[T,3] cu", wrap=_one_token_less, depends=False, tail=False, exact=False)
def boundaries_less_one_for_each_document(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    sums, parts = [], []
    for i in range(cu.shape[0] - 1):
        part = x[cu[i] - i : cu[i + 1] - i - 1]
        sums.append(part.sum(0))
        parts.append(part * 2)
    return torch.stack(sums), torch.cat(parts)


@program("f[N,9,3] cu", wrap=_some_below_zero, depends=False, tail=False)
def from_the_document_s_number_on(x: Tensor, numbers: Tensor) -> Tensor:
    return torch.cat([x[i, i : n + 3] for i, n in enumerate(numbers.tolist())])
