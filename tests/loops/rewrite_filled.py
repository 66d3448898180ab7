"""Loops that must be rewritten: documents filled up by numbers of their own, documents of two rows joined."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


def _twice(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Any, ...]:
    """The second row is cut by boundaries of its own."""
    return x, y, cu, cu * 2


def _lengths(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Any, ...]:
    return x, y, cu.diff(), cu.diff() * 2


@program("f[T,4] cu", tail=False)
def padded_to_a_multiple(x: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outs.append(F.pad(x[s:e], (0, 0, 0, -(e - s) % 4)))
    return torch.cat(outs)


@program("f[T,4] cu", tail=False)
def padded_with_a_number(x: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for i in range(len(cu) - 1):
        n = (cu[i + 1] - cu[i]).item()
        outs.append(F.pad(x[cu[i] : cu[i + 1]], (0, 0, (n + 7) // 8 * 8 - n, 0), value=-100))
    return torch.cat(outs)


@program("i[T] cu", tail=False)
def labels_and_lengths_filled_up(ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    labels, positions, lengths = [], [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = ids[s:e]
        pad = -len(part) % 4
        labels.append(torch.cat([part, torch.full((pad,), -100, dtype=torch.long)]))
        positions.append(torch.cat([torch.arange(e - s), torch.zeros(pad, dtype=torch.long)]))
        lengths.append(e - s + pad)
    return torch.cat(labels), torch.cat(positions), torch.tensor(lengths)


@program("i[T] cu", tail=False)
def filled_up_with_two_numbers(ids: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        pad = -(e - s) % 4
        zeros, ignored = torch.zeros(pad, dtype=torch.long), torch.full((pad,), -100, dtype=torch.long)
        outs.append(torch.cat([ignored, zeros, ids[s:e], ignored]))
    return torch.cat(outs)


@program("f[T,2] i[T] cu", tail=False)
def filled_up_behind_a_branch(x: Tensor, ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts, labels = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part, label = x[s:e] * 2, ids[s:e]
        pad = (4 - (e - s) % 4) % 4
        if pad > 0:
            part = torch.cat([part, x.new_zeros(pad, 2)])
            label = F.pad(label, (0, pad), value=-100)
        parts.append(part)
        labels.append(label)
    return torch.cat(parts), torch.cat(labels)


@program("i[T] cu", tail=False)
def filled_up_in_front_if_anything_is_missing(ids: Tensor, cu: Tensor) -> Tensor:
    labels = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        label = ids[s:e]
        pad = -(e - s) % 4
        if pad:
            label = torch.cat([torch.zeros(pad, dtype=torch.long), label])
        labels.append(label)
    return torch.cat(labels)


@program("f[T] cu", tail=False)
def padded_by_its_number(x: Tensor, cu: Tensor) -> Tensor:
    rows = [F.pad(x[s:e], (0, i)) for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist()))]
    return torch.cat(rows)


@program("f[T] cu", tail=False)
def always_something_behind(x: Tensor, cu: Tensor) -> Tensor:
    spans = zip(cu[:-1].tolist(), cu[1:].tolist())
    return torch.cat([torch.cat((x[s:e], x.new_zeros(8 - (e - s) % 8))) for s, e in spans])


# === Two sets of boundaries ==================================================================================


@program("f[T,2] f[2*T,2] cu", wrap=_twice, tail=False)
def caption_and_image(text: Tensor, image: Tensor, cu: Tensor, ends: Tensor) -> Tensor:
    outs = []
    for i in range(len(cu) - 1):
        outs.append(torch.cat([text[cu[i] : cu[i + 1]], image[ends[i] : ends[i + 1]]], 0))
    return torch.cat(outs)


@program("f[T,2] f[2*T,2] cu64", wrap=_lengths, tail=False, depends=False, graphs=4)
def caption_and_image_of_two_splits(text: Tensor, image: Tensor, lengths: Tensor, sizes: Tensor) -> Tensor:
    outs = []
    for one, other in zip(text.split(lengths.tolist()), image.split(sizes.tolist())):
        outs.append(torch.cat([one, other]))
    return torch.cat(outs)


@program("f[T,2] f[2*T,2] cu", wrap=_twice, tail=False)
def image_and_what_is_computed_on_the_caption(text: Tensor, image: Tensor, cu: Tensor, ends: Tensor) -> Tensor:
    outs = []
    for i in range(len(cu) - 1):
        a, b, s, e = (v.item() for v in (ends[i], ends[i + 1], cu[i], cu[i + 1]))
        outs.append(torch.cat([image[a:b], text[s:e].flip(0) * 2, text.new_zeros(1, 2)]))
    return torch.nn.utils.rnn.pad_sequence(outs, batch_first=True)


# ---------------------------------------------------------------- by numbers that a list of their own holds


@program("i[T] i[T] cu64", tail=False)
def filled_up_by_a_list_of_numbers(ids: Tensor, labels: Tensor, cu: Tensor) -> Any:
    lengths = cu[1:] - cu[:-1]
    missing = [((n.item() + 3) // 4) * 4 - n.item() for n in lengths]
    tokens = [ids[s.item() : e.item()] for s, e in zip(cu[:-1], cu[1:])]
    targets = [labels[s.item() : e.item()] for s, e in zip(cu[:-1], cu[1:])]
    ids = torch.cat([torch.cat([t, t.new_full((m,), 7)]) if m > 0 else t for t, m in zip(tokens, missing)])
    labels = torch.cat([torch.cat([t, t.new_full((m,), -100)]) if m > 0 else t for t, m in zip(targets, missing)])
    ends = (lengths + torch.tensor(missing)).cumsum(0)
    return ids, labels, F.pad(ends, (1, 0))


@program("f[T,2] cu", tail=False)
def split_and_filled_up_by_a_list(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    missing = [(n + 7) // 8 * 8 - n for n in lengths]
    parts = [torch.cat([p, p.new_zeros(m, 2)]) if m > 0 else p for p, m in zip(x.split(lengths), missing)]
    return torch.cat(parts)


@program("f[T,2] cu", tail=False)
def halves_by_a_list(x: Tensor, cu: Tensor) -> Tensor:
    halves = [n // 2 for n in cu.diff().tolist()]
    return torch.cat([x[s : s + h].flip(0) for s, h in zip(cu[:-1].tolist(), halves)])


# === Parts of what was padded on both sides ==================================================================


@program("f[T,3] cu", tail=False)
def windows_of_three(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        padded = F.pad(x[s:e], (0, 0, 2, 0))
        parts.append(torch.stack([padded[:-2], padded[1:-1], padded[2:]], 1))
    return torch.cat(parts)


@program("i[T] cu", tail=False)
def trigrams(ids: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(ids)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        padded = F.pad(ids[s:e], (1, 1), value=-1)
        out[s:e] = padded[:-2] * 100 + padded[1:-1] * 10 + padded[2:]
    return out


@program("f[T,3] cu", tail=False)
def by_the_documents_length(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        padded = F.pad(x[s:e], (0, 0, 0, 3))
        parts.append(padded[0 : e - s] + 2 * padded[1 : e - s + 1] + 4 * padded[3 : e - s + 3])
    return torch.cat(parts)


@program("f[T,3] cu", tail=False)
def padded_before_the_document_changes(x: Tensor, cu: Tensor) -> Tensor:
    """What was padded is a copy."""
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        own = x[s:e] * 2
        padded = F.pad(own, (0, 0, 1, 0))
        own = own.add(1)
        parts.append(padded[:-1] + own)
    return torch.cat(parts)


@program("f[T,2] f[2*T,2] cu", wrap=_twice, tail=False)
def joined_to_the_one_before(text: Tensor, image: Tensor, cu: Tensor, ends: Tensor) -> Tensor:
    outs = []
    ends = torch.cat((ends[:1], ends))
    for i in range(len(cu) - 1):
        outs.append(torch.cat([text[cu[i] : cu[i + 1]], image[ends[i] : ends[i + 2]]]))
    return torch.cat(outs)
