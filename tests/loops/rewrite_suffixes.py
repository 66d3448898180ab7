"""Loops that must be rewritten: documents that add to all slots behind them (`passes.document_loops.suffixes`)."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("i[T]")
def positions_and_mask_of_megatron(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As the data set of megatron-core makes them; 7 is the mark of an end."""
    total = tokens.numel()
    mask = torch.tril(torch.ones(total, total)).unsqueeze(0)
    loss_mask = torch.ones(total)
    loss_mask[tokens % 8 == 7] = 0.0
    positions = torch.arange(total)
    ends = positions[tokens % 8 == 7].clone()
    previous = 0
    for j in range(ends.numel()):
        i = ends[j]
        mask[0, (i + 1) :, : (i + 1)] = 0
        positions[(i + 1) :] -= i + 1 - previous
        previous = i + 1
    return mask < 0.5, loss_mask, positions


@program("i[2,T]", graphs=3)
def positions_and_masks_of_a_batch(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The same for every row of a batch."""
    rows, total = tokens.size()
    masks = torch.tril(torch.ones(rows, total, total)).view(rows, 1, total, total)
    positions = torch.arange(total).unsqueeze(0).expand_as(tokens).clone()
    for b in range(rows):
        ends = positions[b, tokens[b] % 8 == 7].clone()
        previous = 0
        for j in range(ends.size()[0]):
            i = ends[j]
            masks[b, 0, (i + 1) :, : (i + 1)] = 0
            positions[b, (i + 1) :] -= i + 1 - previous
            previous = i + 1
    return masks < 0.5, positions


@program("i[T] cu")
def numbers_counted_up(x: Tensor, cu: Tensor) -> Tensor:
    ids = torch.zeros_like(x)
    for start in cu[1:].tolist():
        ids[start:] += 1
    return ids


@program("i[T] cu")
def counted_up_and_assigned(x: Tensor, cu: Tensor) -> Tensor:
    ids = x.clone()
    for i in range(len(cu) - 1):
        ids[cu[i] :] = ids[cu[i] :] + i
    return ids


@program("i[T] cu")
def counted_by_a_method(x: Tensor, cu: Tensor) -> Tensor:
    ids = x.clone()
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        ids[end:].sub_(end - start)
    return ids


@program("j[T] cu")
def short_integers(x: Tensor, cu: Tensor) -> Tensor:
    ids = x.clone()
    for start in cu[1:].tolist():
        ids[start:] += 3
    return ids


@program("f[T] f[N] cu", exact=False, graphs=3)
def weights_of_documents(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
    w = w.detach()
    out = x * 2
    for i in range(len(cu) - 1):
        out[cu[i] :] += w[i]
    return out


@program("i[T] cu")
def slots_in_front_of_a_boundary(x: Tensor, cu: Tensor) -> Tensor:
    """Slots from three before each document's end on; in front of the row, from its end, as Python counts."""
    out = x.clone()
    for end in cu[1:].tolist():
        out[end - 3 :] += 1
    return out


@program("i[T] cu")
def slots_beyond_the_row(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for end in cu[1:].tolist():
        out[end + 5 :] -= end
    return out


@program("i[T] i[N]", graphs=3)
def numbers_in_any_order(x: Tensor, begins: Tensor) -> Tensor:
    out = x.clone()
    for begin in (begins % 11).tolist():
        out[begin:] += begin
    return out


@program("i[T] cu")
def some_documents_alone(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if end - start > 2:
            out[end:] += 1
    return out


@program("i[T] cu")
def others_are_skipped(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if end - start <= 2:
            continue
        out[end:] -= end - start
    return out


@program("i[T] cu")
def some_documents_and_their_own_slots(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, own = x.clone(), torch.zeros_like(x)
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if end > start:
            out[end:] += 1
        own[start:end] = end - start
    return out, own


@program("i[T] cu")
def added_to_twice(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[start:] += 1
        out[end:] -= end
    return out


@program("i[3,T] cu")
def columns_of_a_row(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for end in cu[1:].tolist():
        out[:, end:] -= end
    return out


@program("i[T,3] cu")
def two_of_three_columns(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for end in cu[1:].tolist():
        out[end:, 0] -= end
        out[end:, 2] += 1
    return out


@program("i[T] cu", mutates=True)
def an_input_is_added_to(x: Tensor, cu: Tensor) -> Tensor:
    for end in cu[1:].tolist():
        x[end:] -= end
    return x + 1


@program("i[T] cu")
def counted_to_the_end(x: Tensor, cu: Tensor) -> Tensor:
    positions = torch.arange(len(x))
    for end in cu[1:].tolist():
        positions[end:] = torch.arange(len(x) - end)
    return positions


@program("i[T] cu")
def counted_behind_long_documents(x: Tensor, cu: Tensor) -> Tensor:
    positions = x.clone()
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if end - start > 2:
            positions[end:] = torch.arange(0, x.shape[0] - end, dtype=torch.int32)
    return positions


@program("i[2,T]", graphs=3)
def counted_in_rows_of_a_batch(tokens: Tensor) -> Tensor:
    positions = torch.arange(tokens.size(1)).repeat(tokens.size(0), 1)
    for b in range(tokens.size(0)):
        for i in (tokens[b] % 8 == 7).nonzero().flatten().tolist():
            positions[b, i + 1 :] = torch.arange(tokens.size(1) - i - 1)
    return positions


@program("i[T] cu")
def written_back_behind_a_branch(x: Tensor, cu: Tensor) -> Tensor:
    """The sum is there before it is known which documents write it."""
    out = x.clone()
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        more = out[end:] + 1
        if end - start < 3:
            continue
        out[end:] = more
    return out
