"""Loops that must be rewritten: parts of documents that numbers of their own cut, as Python counts them. Prompts and
replies, halves, several documents in one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .harness import Shape, program


def any_numbers(x: Tensor, numbers: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    """Negative ones, zeros and ones that are larger than documents are long."""
    return x, numbers % 17 - 8, cu


def small_numbers(x: Tensor, numbers: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    return x, numbers % 3, cu


def pairs(x: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    cu = cu[: (len(cu) - 1) // 2 * 2 + 1]
    return x[: int(cu[-1])], cu


EVEN = (Shape(4, 24, "plain"), Shape(8, 61, "plain"), Shape(2, 9, "plain"), Shape(50, 173, "plain"))


@program("f[T,3] i[N] cu64", wrap=any_numbers, tail=False, graphs=3)
def heads(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    parts = x.split((cu[1:] - cu[:-1]).tolist())
    return torch.cat([part[:n] for part, n in zip(parts, numbers.tolist(), strict=True)])


@program("f[T,3] i[N] cu64", wrap=any_numbers, tail=False, graphs=3)
def tails(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    parts = x.split((cu[1:] - cu[:-1]).tolist())
    return torch.cat([part[-n:] for part, n in zip(parts, numbers.tolist(), strict=True)])


@program("f[T,3] i[N] cu", wrap=any_numbers, tail=False, graphs=3)
def sums_of_both_parts(x: Tensor, numbers: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    heads, tails = [], []
    for i in range(len(cu) - 1):
        part, n = x[cu[i] : cu[i + 1]], numbers[i]
        heads.append(part[:n].sum(0))
        tails.append(part[n:].sum(0))
    return torch.stack(heads), torch.stack(tails)


@program("f[T,3] i[N] cu", wrap=any_numbers, tail=False, graphs=3)
def slots_of_a_reply(x: Tensor, numbers: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, lengths = [], []
    for i in range(len(cu) - 1):
        reply = x[cu[i] : cu[i + 1]][-numbers[i] :]
        out.append(reply[1:])
        lengths.append(len(reply))
    return torch.cat(out), torch.tensor(lengths)


@program("f[T,3] i[N] cu", wrap=any_numbers, tail=False, graphs=3, exact=False)
def computed_first(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        scores = x[cu[i] : cu[i + 1]].log_softmax(-1)
        out.append(scores[numbers[i] :].sum(0) + scores.sum(0))
    return torch.stack(out)


@program("i[T] i[N] cu64", wrap=any_numbers, tail=False, graphs=3)
def labels_of_replies(ids: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    out = []
    for part, n in zip(ids.split((cu[1:] - cu[:-1]).tolist()), numbers.tolist(), strict=True):
        labels = part.clone()
        labels[:n] = -100
        out.append(labels)
    return torch.cat(out)


@program("f[T,3] i[N] cu", wrap=any_numbers, mutates=True, graphs=3)
def written_in_place(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        part[numbers[i] :] += 1
        part[: numbers[i]] = 0
    return x


@program("f[T,5] i[N] cu", wrap=small_numbers, tail=False, min_len=3, graphs=3, exact=False)
def scores_one_slot_before(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for i in range(len(cu) - 1):
        scores, n = x[cu[i] : cu[i + 1]], numbers[i] + 1
        wanted = (scores[:, 0] * 8).long().remainder(5)
        loss = nn.functional.cross_entropy(scores[n - 1 : -1], wanted[n:], reduction="sum")
        total = total + (loss + scores[n - 1 : -1].gather(1, wanted[n:, None]).sum())
    return total


@program("f[T,3] i[N] cu", wrap=small_numbers, tail=False, min_len=3, graphs=3)
def apart_by_a_number(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        part, n = x[cu[i] : cu[i + 1]], numbers[i] + 1
        out.append(part[n:] - part[:-n])
    return torch.cat(out)


@program("f[T] i[N] cu", wrap=small_numbers, tail=False, min_len=3, graphs=3)
def one_slot_beside_others(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    """One slot, or none, meets as many as there are: torch broadcasts it."""
    out = []
    for i in range(len(cu) - 1):
        part, n = x[cu[i] : cu[i + 1]], numbers[i]
        out.append((part[n : n + 1] * part).sum())
    return torch.stack(out)


@program("i[T] i[N] cu", wrap=small_numbers, tail=False, graphs=3)
def joined_again(ids: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        part = ids[cu[i] : cu[i + 1]]
        labels = torch.cat((torch.full_like(part[: numbers[i]], -100), part[numbers[i] :]))
        out.append((labels * part).sum())
    return torch.stack(out)


@program("i[T] i[N] cu", wrap=small_numbers, tail=False, graphs=3)
def filled_up_in_front(ids: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e, n in zip(cu[:-1].tolist(), cu[1:].tolist(), numbers.tolist(), strict=True):
        out.append(torch.cat((ids.new_full((n,), -100), ids[s + n : e])))
    return torch.cat(out)


@program("f[T,3] cu", tail=False)
def both_halves(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        middle = (s + e) // 2
        out.append(x[s:middle].sum(0) - x[middle:e].sum(0) * 2)
    return torch.stack(out)


@program("f[T,3] cu", tail=False, exact=False)
def the_first_and_all(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        n = min(e - s, 4)
        out.append(x[s : s + n].sum(0) * x[s:e].sum(0))
    return torch.stack(out)


@program("f[T,3] f[N,5,3] cu", tail=False, graphs=3)
def cut_off_and_padded(x: Tensor, rows: Tensor, cu: Tensor) -> Tensor:
    rows = rows.clone()
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        n = min(len(part), 5)
        rows[i, :n] = part[:n]
    return rows


@program("f[T,3] cu", wrap=pairs, tail=False, shapes=EVEN, graphs=3)
def chosen_and_rejected(x: Tensor, cu: Tensor) -> Tensor:
    loss = x.new_zeros(())
    for i in range(0, len(cu) - 1, 2):
        chosen, rejected = x[cu[i] : cu[i + 1]].sum(), x[cu[i + 1] : cu[i + 2]].sum()
        loss = loss + (chosen - rejected).relu()
    return loss


@program("f[T,3] cu64", wrap=pairs, tail=False, shapes=EVEN, graphs=3)
def every_second_part_of_a_split(x: Tensor, cu: Tensor) -> Tensor:
    parts = x.split((cu[1:] - cu[:-1]).tolist())
    apart = [a.sum(0) - b.sum(0) * 2 for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return torch.stack([x.new_zeros(3), *apart])


@program("f[T,3] cu64", tail=False)
def padded_up_to_a_width(x: Tensor, cu: Tensor) -> Tensor:
    rows = x.new_zeros(len(cu) - 1, 4, 3)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        n = min(e - s, 4)
        rows[i, :n] = x[s : s + n]
    return rows


@program("f[T,3] cu64", tail=False, graphs=3, depends=False)
def chunks_of_documents(x: Tensor, cu: Tensor) -> Tensor:
    counts = (cu[1:] - cu[:-1] + 3) // 4
    return torch.cat([torch.arange(n) for n in counts.tolist()])


@program("f[T,3] f[N,6] cu", graphs=3)
def modulated(x: Tensor, table: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        shift, scale = table[i].chunk(2, dim=-1)
        first, rest = table[i].split([2, 4])
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] * (1 + scale) + shift + first.sum() - rest.sum()
    return out


@program("f[T,3] cu", tail=False)
def no_more_than_some(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part, over = x[s:e], e - s - 3
        if over > 0:
            part = part[:-over]
        out.append(part)
    return torch.cat(out)


@program("f[T,3] cu", tail=False)
def the_last_ones(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e] * 2
        if e - s > 3:
            part = part[e - s - 3 :]
        out.append(part)
    return torch.cat(out)


@program("f[T,3] cu", tail=False)
def whole_groups(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        rest = (e - s) % 4
        out.append(x[s:e][:-rest] if rest else x[s:e])
    return torch.cat(out)


@program("f[T,3] cu", tail=False, exact=False)
def the_second_half_of_what_was_cut(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    firsts, seconds, lengths = [], [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        middle = (s + e) // 2
        firsts.append(x[s:middle].sum(0))
        seconds.append(x[middle:e].exp())
        lengths.append(len(x[middle:e]))
    return torch.stack(firsts), torch.cat(seconds), torch.tensor(lengths)
