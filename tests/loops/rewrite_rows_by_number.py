"""Rows of sizes by their numbers, as tensors or numbers, and branches on them (`packpass.capture.row_entries`,
`packpass.capture.branches`); rows of a batch by `unbind`; slots of a document by their places."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .harness import program
from .rewrite_looped_again import as_row, crops


def _padded(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [N, 9, 3] and how long they are, 1 to 9 [N]."""
    return x, mask.sum(1).clamp(min=1)


def _mask(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [N, 9, 3] and which of their slots are there, the first ones [N, 9]."""
    return x, torch.arange(9) < mask.sum(1, keepdim=True).clamp(min=1)


def _ids(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """A row [T, 3] and the number of the document of each slot [T]."""
    return x, torch.repeat_interleave(torch.arange(len(cu) - 1), torch.diff(cu.long()))


padded: Any = functools.partial(program, "f[N,9,3] m[N,9]", wrap=_padded, tail=False, exact=False)
numbered: Any = functools.partial(program, "f[T,3] cu", wrap=_ids, tail=False, exact=False, min_len=1, reads=1)


# === Rows by their numbers ===================================================================================


@crops("f[N,3,4,4] i[N,2]")
def sizes_by_number(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i in range(len(sizes)):
        h, w = sizes[i]
        out.append(torch.arange(h * w) // w)
    return torch.cat(out)


@crops("f[N,3,4,4] i[N,2]")
def one_size_by_number(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i in range(sizes.shape[0]):
        h = sizes[i, 0]
        out.append(torch.arange(h)[:, None].expand(h, 2).reshape(-1))
    return torch.cat(out)


@crops("f[N,3,4,4] i[N,2]")
def sizes_by_number_as_a_list(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i in range(x.shape[0]):
        h, w = sizes[i].tolist()
        out.append(as_row(x[i, :, :h, :w]) * 2)
    return torch.cat(out)


@crops("f[N,3,4,4] i[N,2]")
def product_of_sizes_in_a_slice(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i in range(x.size(0)):
        h, w = sizes[i]
        count = h * w
        out.append(x[i].flatten(1)[:, :count].view(3, h, w).flip(1).reshape(-1))
    return torch.cat(out)


@crops("f[N,3,4,4] i[N,2]")
def table_and_mask_by_number(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    counts = sizes[:, 0] * sizes[:, 1]
    table, mask, out = x[0].movedim(0, -1), torch.zeros(x.shape[0], 16, dtype=torch.bool), []
    for i in range(x.shape[0]):
        h, w = sizes[i].tolist()
        out.append(table[:h, :w, :].reshape(h * w, -1))
        mask[i, counts[i] :] = True
    return pad_sequence(out, batch_first=True), mask


# === Branches on sizes that are tensors ======================================================================


@crops("f[N,3,4,4] i[N,2]")
def branch_on_a_size(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for h, w in sizes:
        places = torch.arange(h)
        if w > 1:
            places = places.repeat(w)
        out.append(places)
    return torch.cat(out)


@crops("f[N,3,4,4] i[N,2]")
def one_of_three_ways(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for h, w in sizes:
        if h > w:
            out.append(torch.arange(h * w) // w)
        elif h == w:
            out.append(torch.arange(h * w) % w)
        else:
            out.append(torch.arange(h * w) * 0 + h)
    return torch.cat(out)


@crops("f[N,3,4,4] i[N,2]")
def the_larger_of_two_sizes(x: Tensor, sizes: Tensor) -> Tensor:
    return torch.cat([torch.arange(h if h > w else w) * w for h, w in sizes])


@crops("f[N,3,4,4] i[N,2]")
def both_sizes_asked(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for h, w in sizes:
        row = torch.arange(h * w)
        if h > 1 and w > 1:
            row = row + 5
        out.append(row)
    return torch.cat(out)


@crops("f[N,3,4,4] i[N,2]")
def sizes_that_are_asserted(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i, (h, w) in enumerate(sizes):
        assert h >= 1
        if h * w > 16 or w < 1:
            raise ValueError(f"{h} {w}")
        out.append(as_row(x[i, :, :h, :w]))
    return torch.cat(out)


# === Tables ==================================================================================================


@crops("f[N,3,4,4] i[N,2]")
def flat_table_between_bounds(x: Tensor, sizes: Tensor) -> Tensor:
    table, out = x[0].flatten(1).t(), []
    for h, w in sizes.tolist():
        at = torch.linspace(-1, 6, h * w).floor().long()
        row, column = at.clamp(0, 3), (at - 1).clamp(min=0).clamp(max=3)
        out.append(table[row * 4 + column] * 2 + table.view(4, 4, 3)[column, row])
    return torch.cat(out)


@crops("f[N,3,4,4] i[N,2]")
def places_from_the_end_of_a_table(x: Tensor, sizes: Tensor) -> Tensor:
    table, out = x[0].flatten(1).t(), []
    for h, w in sizes.tolist():
        at = torch.arange(h * w) % 4
        out.append(table[(at - 2).clamp(-3, 3)] + table[at.remainder(3) * 4 - 1])
    return torch.cat(out)


# === Rows of a batch =========================================================================================


@padded()
def rows_by_unbind(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat([row[:n] for row, n in zip(x.unbind(0), lengths.tolist())])


@padded()
def list_of_rows_by_unbind(x: Tensor, lengths: Tensor) -> Tensor:
    rows = list(torch.unbind(x))
    return torch.cat([rows[i][: lengths[i]] * 2 for i in range(len(rows))])


@padded()
def lengths_of_parts_as_a_typed_tensor(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    parts = [row[:n] for row, n in zip(x, lengths.tolist())]
    counts = torch.IntTensor([part.size(0) for part in parts])
    return torch.cat(parts), counts, torch.LongTensor([len(part) for part in parts])


@program("f[N,9,3] m[N,9]", wrap=_mask, tail=False, exact=False)
def sums_of_a_mask_as_an_array(x: Tensor, mask: Tensor) -> Tensor:
    lengths = mask.sum(1).detach().cpu().numpy()
    return torch.stack([x[i, :n].sum(0) for i, n in enumerate(lengths)])


# === Places of a document ====================================================================================


@numbered()
def mask_and_all_features(x: Tensor, batch: Tensor) -> Tensor:
    return torch.stack([x[batch == b, :].sum(0) for b in range(int(batch.max()) + 1)])


@numbered()
def places_of_a_document(x: Tensor, batch: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for b in range(int(batch.max()) + 1):
        places = (batch == b).nonzero(as_tuple=True)[0]
        out[places] = x[places] - x[places].mean(0)
    return out


@numbered()
def places_by_where(x: Tensor, batch: Tensor) -> Tensor:
    out = []
    for b in range(int(batch.max()) + 1):
        places = torch.where(batch == b)[0]
        out.append(x[places].mean(0))
    return torch.stack(out)


@program("i[N,9,3] m[N,9]", tail=False, exact=False)
def mean_of_what_a_mask_keeps_or_zeros(x: Tensor, mask: Tensor) -> Tensor:
    rows, out = x.float(), []
    for i in range(rows.shape[0]):
        kept = rows[i][mask[i].bool()]
        out.append(kept.mean(0) if kept.numel() > 0 else torch.zeros(rows.shape[-1]))
    return torch.stack(out)
