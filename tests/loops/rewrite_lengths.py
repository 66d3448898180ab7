"""Loops that must be rewritten: documents that become longer or shorter, and are joined to a row of their own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .harness import SHAPES, program

GAPS = tuple(shape for shape in SHAPES if shape.docs)

# ---------------------------------------------------------------- shorter


@program("f[T,3] cu", demand=True, shapes=GAPS)
def all_but_the_first(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s + 1 : e] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("f[T] cu", demand=True, shapes=GAPS)
def differences_of_neighbours(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        d = x[cu[i] : cu[i + 1]]
        out.append(d[1:] - d[:-1])
    return torch.cat(out)


@program("f[T,5] i[T] cu", tail=False, demand=True)
def scores_of_the_next_token(logits: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    kept, labels = [], []
    for s, e in zip(cu[:-1], cu[1:]):
        kept.append(logits[s:e][:-1])
        labels.append(ids[s:e][1:] % 5)
    return torch.cat(kept).gather(1, torch.cat(labels)[:, None])


@program("f[2,T] cu", demand=True, shapes=GAPS)
def both_ends(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1], cu[1:]):
        d = x[:, s:e] * 2
        out.append(torch.cat((d[:, -2:], d[:, :2]), 1))
    return torch.cat(out, 1)


@program("f[T,2] cu", tail=False, demand=True)
def shorter_and_padded(x: Tensor, cu: Tensor) -> Tensor:
    return pad_sequence([x[s:e][2:] * 2 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())], batch_first=True)


# ---------------------------------------------------------------- as long as they were, but for those without slots


@program("i[T] cu", demand=True, shapes=GAPS)
def labels_in_a_list(ids: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.cat([ids[s:e][1:], ids.new_full((1,), -100)]) for s, e in zip(cu[:-1], cu[1:])])


@program("f[T] i[T] cu", tail=False, min_len=1, demand=True)
def labels_that_meet_the_row(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    """That they are as long as the row is what adding the two asks."""
    return x + torch.cat([F.pad(ids[s:e][1:], (0, 1)) for s, e in zip(cu[:-1], cu[1:])])


@program("f[T,2] cu", demand=True, shapes=GAPS)
def differences_behind_a_zero(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        d = x[s:e]
        out.append(F.pad(d[1:] - d[:-1], (0, 0, 1, 0)))
    return torch.cat(out)


@program("f[T,2] cu", tail=False, demand=True)
def differences_and_the_first(x: Tensor, cu: Tensor) -> Tensor:
    """As long as the document, whatever its length."""
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        d = x[s:e]
        out.append(torch.cat([d[:1], d[1:] - d[:-1]]))
    return torch.cat(out)


@program("f[T,2] cu", tail=False, demand=True)
def differences_and_the_last(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        d = x[s:e]
        out[s:e] = torch.cat([d[1:] - d[:-1], d[-1:] * 2])
    return out


@program("f[T,2] f[1,2] cu", demand=True, shapes=GAPS)
def behind_a_learned_start(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.cat((start, x[s:e][:-1])) for s, e in zip(cu[:-1], cu[1:])])


# ---------------------------------------------------------------- longer


@program("f[T,3] f[3] cu", demand=True, shapes=GAPS)
def one_token_in_front(x: Tensor, first: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.cat((first[None], x[cu[i] : cu[i + 1]])) for i in range(len(cu) - 1)])


@program("i[T] cu64", demand=True, shapes=GAPS)
def between_two_ids(ids: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.cat([torch.tensor([1]), ids[s:e], torch.tensor([2])]) for s, e in zip(cu[:-1], cu[1:])])


@program("m[T] cu", demand=True, shapes=GAPS)
def filled_on_both_sides(mask: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([F.pad(mask[s:e], (2, 1), value=True) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("f[T,2] f[N,3,2] cu", demand=True, graphs=3, shapes=GAPS)
def queries_of_its_own(x: Tensor, queries: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.cat((x[cu[i] : cu[i + 1]], queries[i])) for i in range(len(cu) - 1)])


@program("f[2,T] cu", demand=True, shapes=GAPS)
def with_its_sum(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1], cu[1:]):
        d = x[:, s:e]
        out.append(torch.cat((d, d.sum(1, keepdim=True), d[:, :1]), 1))
    return torch.cat(out, 1)


@program("f[T] cu", demand=True, shapes=GAPS)
def several_entries_each(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        d = x[s:e] * 2
        parts.append(d[1:])
        parts.append(x.new_zeros(3))
        parts.append(d[:1])
        d.mul_(3)  # the list shows it
    return torch.cat(parts)


@program("f[T,2] cu", demand=True, shapes=GAPS)
def each_twice(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s:e].repeat(2, 1) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("f[T,2] i[T] cu", tail=False, demand=True)
def another_dtype_in_front(x: Tensor, ids: Tensor, cu: Tensor) -> Any:
    zero = torch.zeros(1, 2, dtype=torch.float64)
    longer = torch.cat([torch.cat((zero, x[s:e])) for s, e in zip(cu[:-1], cu[1:])])
    return longer, torch.cat([torch.cat((ids[s:e], ids[s:e][:1].float())) for s, e in zip(cu[:-1], cu[1:])])


@program("f[T,2] cu", demand=True, shapes=tuple(s for s in GAPS if s.kind != "tail_empty"))
def nothing_for_empty_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if s == e:
            continue
        out.append(torch.cat((x.new_ones(1, 2), x[s:e])))
    return torch.cat(out)


@program("f[T] cu", tail=False, demand=True)
def lengths_of_the_longer(x: Tensor, cu: Tensor) -> Tensor:
    """A number like any other."""
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(x[s:e].sum() * torch.cat((x.new_ones(2), x[s:e])).shape[0])
    return torch.stack(out)


# ---------------------------------------------------------------- split at boundaries


@program("f[2,T] cu", tail=False, demand=True)
def split_at_the_inner_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([part.roll(1, -1) for part in torch.tensor_split(x, cu[1:-1].tolist(), dim=-1)], -1)


@program("f[T,2] cu", tail=False, demand=True)
def split_at_boundaries_and_counted(x: Tensor, cu: Tensor) -> Tensor:
    """The last part begins where the tensor ends."""
    return torch.cat([part.cumsum(0) * i for i, part in enumerate(x.tensor_split(cu[1:].tolist()))])


@program("f[T] cu", tail=False, demand=True, unfit=True)
def split_at_falling_places(x: Tensor, cu: Tensor) -> Tensor:
    """No boundaries: a part that would end before it begins has no slots, and the next one has some of its own."""
    return torch.cat([part.flip(0) for part in x.tensor_split(cu[1:-1].flip(0).tolist())])


@program("f[T,2] cu", tail=False, demand=True, unfit=True)
def split_at_places_from_the_end(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([part.sum(0) for part in torch.tensor_split(x, (cu[1:-1] - 5).tolist())])


@program("f[2,T] cu", demand=True, shapes=GAPS)
def one_slot_behind(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(F.pad(x[:, s:e], (0, 1)))
    return torch.cat(parts, -1)


@program("f[2,T] cu", demand=True, shapes=GAPS)
def one_slot_of_empty_documents(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(torch.cat((x[:, s:e][:, 1:], x.new_zeros((2, 1))), -1))
    return torch.cat(parts, -1)


@program("f[2,T] cu", demand=True, shapes=GAPS, unfit=True)
def without_the_last_token(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[:, s : e - 1] for s, e in zip(cu[:-1], cu[1:])], -1)


@program("f[T] cu", demand=True, shapes=GAPS, unfit=True)
def sums_without_the_last_token(x: Tensor, cu: Tensor) -> Tensor:
    """Of an empty document in front of all others Python takes nearly the whole row."""
    return torch.stack([x[s : e - 1].sum() for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


def without_last_slots(scores: Tensor, prompt: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    """Scores of all slots but each document's last."""
    return scores[: len(scores) - len(cu) + 1], prompt, cu


@program("f[T] m[T] cu", wrap=without_last_slots, tail=False, min_len=1, graphs=3)
def row_beside_a_shorter_one(scores: Tensor, prompt: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """What the loop makes is as long as another row of the frame, which is not that of the documents."""
    numbers = torch.cat([torch.arange(cu[i] + 1, cu[i + 1]) for i in range(len(cu) - 1)])
    prompt = prompt[numbers]
    with torch.no_grad():
        weights = torch.ones(3)
    return torch.where(prompt, 0, scores), weights


# ---------------------------------------------------------------- copied


@program("f[T,3] cu", min_len=2, tail=False)
def copies_of_chunks(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        parts = x[cu[i] : cu[i + 1]].chunk(2)
        out.extend([parts[1].clone(), parts[0].contiguous().double().float()])
    return torch.cat(out)


@program("f[T,3] cu", min_len=2, tail=False)
def chunks_without_gradient(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts = x[s:e].chunk(2)
        out.append(torch.cat([parts[1].detach(), parts[0]]))
    return torch.cat(out)


@program("f[T,3] f[3] cu", tail=False)
def longer_ones_detached(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        rows.append(torch.cat([start[None], x[s:e], x[s:e].mean(0, keepdim=True)]).detach().clone())
    return torch.cat(rows) + x.sum()


@program("f[T,2] cu", tail=False, reads=1)
def padded_to_the_largest_or_none(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    out = x.new_zeros(len(lengths), max(lengths, default=0), 2)
    for i, part in enumerate(x.split(lengths)):
        out[i, : part.shape[0]] = part
    return out
