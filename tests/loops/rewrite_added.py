"""Loops that must be rewritten: entries of a tensor from outside add up what documents give (`passes.entry_totals`),
numbers behind and in front of lists of numbers, and running values among what has a slot for every two slots."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import program

# === Entries that add up =======================================================================================


@program("f[T] cu", depends=False)
def loss_and_count_in_one_tensor(x: Tensor, cu: Tensor) -> Tensor:
    sums = torch.zeros(2)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums[0] += x[s:e].sum()
        sums[1] += e - s
    return sums


@program("f[T] m[T] cu", depends=False)
def metrics_in_a_dict(x: Tensor, mask: Tensor, cu: Tensor) -> Any:
    metrics = {"loss": torch.zeros(2), "documents": torch.zeros(1, dtype=torch.int64)}
    for i in range(cu.shape[0] - 1):
        own = slice(cu[i], cu[i + 1])
        kept = x[own].detach()[mask[own]]
        metrics["loss"][0] += kept.sum()
        metrics["loss"][1] += kept.shape[0]
        metrics["documents"][0] += 1
    return metrics


@program("m[T] cu", depends=False)
def boundaries_of_what_is_kept(mask: Tensor, cu: Tensor) -> Tensor:
    kept = cu.clone()
    for i in range(cu.shape[0] - 1):
        start, end = cu[i], cu[i + 1]
        kept[i + 1 :] -= (~mask[start:end]).sum()
    return kept


@program("f[T,3] cu")
def later_rows_get_all_sums(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(9, 3)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i + 2 :] += x[s:e].sum(0)
    return out


@program("f[T] cu")
def later_rows_get_one_number(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.ones(60, 2)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i:] -= x[s:e].sum()
    return out


@program("f[T,4] cu", min_len=1, tail=False)
def rows_and_parts_of_rows(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(2, 4)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[0] += x[s:e].sum(0)
        out[1, :2] -= x[s:e].detach().amax(0)[:2]
        out[-1, 2:].add_(1.5)
    return out


@program("f[T] m[T] cu", depends=False)
def sums_that_are_stored(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = torch.ones(3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[0] = out[0] + x[s:e].sum()
        out[-1] = out[-1] - mask[s:e].sum()
    return out


@program("f[T] cu", min_len=1, tail=False)
def two_sums_in_one_entry(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(2)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[0] += x[s:e].sum()
        out[0] += x[s:e].detach().max()
    return out


@program("f[T] cu", exact=False)
def skipped_documents_add_nothing(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(2)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 3:
            continue
        out[0] += x[s:e].detach().mean()
        out[1] += 1
    return out


@program("f[T] cu")
def short_and_long_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(2)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 3:
            out[0] += x[s:e].detach().sum()
        else:
            out[1] += x[s:e].detach().sum()
    return out


@program("m[T] cu", depends=False)
def only_documents_of_several_slots_lose_some(mask: Tensor, cu: Tensor) -> Tensor:
    kept = cu.clone()
    for i in range(cu.shape[0] - 1):
        start, end = cu[i], cu[i + 1]
        if end - start == 1:
            continue
        kept[i + 1 :] -= (~mask[start:end]).sum()
    return kept


@program("f[T] cu", exact=False)
def read_between_two_loops(x: Tensor, cu: Tensor) -> Any:
    out = torch.zeros(2)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[0] += x[s:e].detach().sum()
    before = out.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[0] += (x[s:e].detach() * before[0]).cumsum(0).sum()
    return before, out


@program("f[T] i[N] cu", tail=False, graphs=3)
def sums_of_every_domain(x: Tensor, domain: Tensor, cu: Tensor) -> Any:
    sums, counts = torch.zeros(3), torch.zeros(3, dtype=torch.int64)
    domain = domain % 3
    for i in range(cu.shape[0] - 1):
        part = x[cu[i] : cu[i + 1]]
        sums[domain[i]] += part.sum()
        counts[domain[i]] += part.numel()
    return sums, counts


@program("f[T,2] i[N] cu", tail=False, graphs=3)
def rows_counted_from_the_end(x: Tensor, domain: Tensor, cu: Tensor) -> Tensor:
    sums = torch.ones(3, 2)
    for k, s, e in zip((domain % 3 - 3).tolist(), cu[:-1].tolist(), cu[1:].tolist()):
        if e == s:
            continue
        sums[k] -= x[s:e].sum(0)
    return sums


@program("f[T] cu")
def sums_by_length(x: Tensor, cu: Tensor) -> Tensor:
    sums = torch.zeros(4)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums[min(e - s, 3)] += x[s:e].sum()
    return sums


@program("f[T] cu")
def every_second_entry(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(101)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[2 * i + 1] += x[s:e].sum()
    return out


# === Numbers in front of and behind lists of numbers ===========================================================


@program("f[T] cu", tail=False)
def starts_and_the_end_of_the_last(x: Tensor, cu: Tensor) -> Tensor:
    bounds, at = [], 0
    for n in cu.diff().tolist():
        bounds.append(at)
        at += n
    bounds.append(at)
    return torch.cat([x[s:e].cumsum(0) for s, e in zip(bounds[:-1], bounds[1:])])


@program("f[T] cu", tail=False, lead_empty=False, reads=1)
def starts_and_the_size_of_the_row(x: Tensor, cu: Tensor) -> Any:
    bounds = []
    for s in cu[:-1].tolist():
        bounds.append(s)
    bounds.append(x.shape[0])
    return torch.stack([x[s:e].sum() for s, e in zip(bounds, bounds[1:])]), len(bounds), bounds[-1]


@program("f[T] cu", tail=False)
def boundaries_counted_on(x: Tensor, cu: Tensor) -> Any:
    bounds, at = [0], 0
    for n in cu.diff().tolist():
        at += int(n)
        bounds.append(at)
    return torch.cat([x[s:e].cumsum(0) for s, e in zip(bounds[:-1], bounds[1:])]), torch.tensor(bounds)


@program("f[T,2] cu", reads=1)
def padded_boundaries_in_a_list(x: Tensor, cu: Tensor) -> Any:
    bounds, at = [0], 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        at += (e - s + 7) // 8 * 8
        bounds.append(at)
    out = x.new_zeros(bounds[-1], 2)
    for s, e, to in zip(cu[:-1].tolist(), cu[1:].tolist(), bounds):
        out[to : to + e - s] = x[s:e]
    return out, torch.tensor(bounds, dtype=torch.int32)


# === Running values of every two slots =========================================================================


@program("d[T,4] d[T] cu", exact=False, min_len=1, tail=False, rule="ragged_grids")
def decays_by_running_sums(x: Tensor, gates: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part, log_decay = x[s:e], gates[s:e].cumsum(0)
        decay = (log_decay[:, None] - log_decay[None]).tril().exp().tril()
        out.append((part @ part.T * decay) @ part)
    return torch.cat(out)


@program("d[T,4] cu", exact=False, min_len=1, tail=False, rule="ragged_grids")
def running_sums_along_both(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e]
        out.append((part @ part.T).tril().cumsum(0).tril().cumsum(-1) @ part.sigmoid().cumprod(0))
    return torch.cat(out)


@program("i[T] cu", rule="ragged_grids", min_len=1, tail=False)
def running_counts_of_equal_tokens(ids: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append((ids[s:e, None] == ids[None, s:e]).tril().cumsum(1).sum(1))
    return torch.cat(out)


# === Chunks of documents that are filled up ======================================================================


@program("d[T,4] cu", exact=False, min_len=1, tail=False, rule="ragged_grids")
def attention_within_chunks(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        n = e - s
        chunks = torch.nn.functional.pad(x[s:e], (0, 0, 0, (4 - n % 4) % 4)).view(-1, 4, 4)
        scores = (chunks @ chunks.transpose(-1, -2)).tril()
        out.append((scores @ chunks).reshape(-1, 4)[:n])
    return torch.cat(out)


@program("d[T,4] d[T] cu", exact=False, min_len=1, tail=False, rule="ragged_grids")
def decays_within_chunks(x: Tensor, gates: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        n = e - s
        pad = (4 - n % 4) % 4
        heads = x[s:e].view(-1, 2, 2).transpose(0, 1)[None]
        heads = torch.nn.functional.pad(heads, (0, 0, 0, pad)).reshape(1, 2, -1, 4, 2)
        gate = torch.nn.functional.pad(gates[s:e], (0, pad)).view(1, 1, -1, 4).cumsum(-1)
        decay = (gate[..., :, None] - gate[..., None, :]).tril().exp().tril()
        found = ((heads @ heads.transpose(-1, -2)) * decay @ heads).reshape(1, 2, -1, 2)[:, :, :n]
        out.append(found[0].transpose(0, 1).reshape(n, 4))
    return torch.cat(out)


@program("f[T,2] cu", tail=False, min_len=1, rule="ragged_grids")
def running_sums_within_chunks(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        n = e - s
        chunks = torch.nn.functional.pad(x[s:e], (0, 0, 0, (4 - n % 4) % 4)).view(-1, 4, 2)
        out.append(chunks.cumsum(1).view(-1, 2)[:n])
    return torch.cat(out)
