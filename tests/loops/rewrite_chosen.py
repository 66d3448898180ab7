"""Loops that must be rewritten: slots that a document names by a number of its own, one slot of its own value, and one
slot beside all."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program

# === A slot by a number ======================================================================================


@program("f[T,4] i[T] cu", tail=False, min_len=1)
def last_token_that_is_no_padding(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        last = (torch.arange(e - s) * (ids[s:e] != 0)).argmax(-1)
        outs.append(x[s:e][last])
    return torch.stack(outs)


@program("f[T,3] i[T] cu64", min_len=1)
def first_end_of_a_sentence(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(len(cu) - 1, 3)
    for i in range(len(cu) - 1):
        ends = (ids[cu[i] : cu[i + 1]] > 30).int()
        out[i] = x[cu[i] : cu[i + 1]][ends.argmax()]
    return out


@program("f[T,3] i[T] cu64", tail=False, min_len=1)
def score_at_a_place_in_the_row(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    scores = []
    for i in range(len(cu) - 1):
        s, e = cu[i].item(), cu[i + 1].item()
        place = ids[s:e].argmax().item()
        scores.append(x[s + place, 0])
    return torch.stack(scores)


@program("f[T,3] i[T] cu64", tail=False, min_len=1)
def score_behind_as_many_as_hold(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    """How many there are is no larger than the document is long, whatever the numbers themselves are."""
    scores = []
    for i in range(len(cu) - 1):
        s, e = cu[i].item(), cu[i + 1].item()
        count = (ids[s:e] > 9).sum().item()
        scores.append(x[s + count - 1, 0])
    return torch.stack(scores)


@program("f[T] i[T] cu", tail=False, min_len=1)
def places_counted_from_the_end(x: Tensor, ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, places = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        place = -1 - ids[s:e].argmin()
        out.append(x[s:e][place] * 2)
        places.append(place.item())
    return torch.stack(out), torch.tensor(places)


@program("f[2,T] i[T] cu", tail=False, min_len=1)
def column_by_a_number(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    spans = zip(cu[:-1].tolist(), cu[1:].tolist())
    return torch.stack([x[:, s:e][:, ids[s:e].argmax()] for s, e in spans])


# === A slot of its own value =================================================================================


@program("f[T] f[T] cu", tail=True, min_len=1, exact=False)
def score_at_the_last_token(kl: Tensor, score: Tensor, cu: Tensor) -> Tensor:
    """Rewards of PPO."""
    rewards = -0.125 * kl
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        rewards[e - 1] += score[s:e].sum()
    return rewards


@program("f[T] f[N] cu", min_len=1, graphs=3)
def given_score_at_the_last_token(kl: Tensor, score: Tensor, cu: Tensor) -> Tensor:
    rewards = kl.clone()
    for i in range(len(cu) - 1):
        rewards[cu[i + 1] - 1] = score[i] + kl[cu[i]]
    return rewards


@program("f[T] f[N] cu", tail=False, min_len=1, exact=False, graphs=3)
def both_ends_of_a_copy(x: Tensor, score: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]] * 1.0
        part[-1] += score[i]
        part[0] = part.sum()
        outs.append(part)
    return torch.cat(outs)


@program("f[2,T,3] f[N,2,3] cu", min_len=1, graphs=3)
def slots_of_several_dimensions(x: Tensor, score: Tensor, cu: Tensor) -> Tensor:
    x = x * 1
    for i in range(len(cu) - 1):
        x[:, cu[i]] = score[i] * 2
    return x


# === One slot beside all =====================================================================================


@program("d[T,3] cu", tail=False, exact=False)
def first_slot_taken_off(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[s:e] - x[s : s + 1] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()) if s < e]
    return torch.cat([x[:0], *parts])


@program("d[T,3] cu", exact=False)
def first_slot_of_a_part_taken_off(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        document = x[s:e]
        out[s:e] = document - document[:1]
    return out


@program("d[T,3] cu", exact=False)
def last_slot_where_there_is_nothing(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if s == e:
            continue
        out[s:e] = torch.where(x[s:e] > 0, x[s:e], x[e - 1 : e])
    return out


@program("f[T,3] cu", exact=False)
def between_both_ends(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e]
        out[s:e] = part[:1] * 2
        out[s:e] += torch.where(part > 0, part[-1:], part)
    return out


@program("d[T,2] d[T,2] cu", tail=False, exact=False)
def decayed_to_the_end(x: Tensor, g: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = (g[s:e] / 16).cumsum(0)
        outs.append(torch.exp(total[-1:] - total) * x[s:e])
    return torch.cat(outs)


@program("f[T,2,3] cu", tail=False, exact=False)
def extremes_of_what_is_summed(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    best, least, which = [], [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = x[s:e].sum(0)
        best.append(total.max())
        least.append(total[0].min())
        which.append(total.argmax())
    return torch.stack(best), torch.stack(least), torch.stack(which)


@program("f[T,3] cu")
def times_the_largest_feature(x: Tensor, cu: Tensor) -> Tensor:
    y = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        y[s:e] = x[s:e] * x[s:e].sum(0).argmin()
    return y
