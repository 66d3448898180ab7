"""Loops that must be rewritten: a branch on a document's length, or on data, that leads to the same both ways."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .harness import program


class Layer(nn.Module):
    is_causal = False


LAYER = Layer()


def attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool | None = None
) -> tuple[Tensor, None]:
    """The wrapper that libraries put around attention: it asks how many queries there are before anything else."""
    is_causal = is_causal if is_causal is not None else module.is_causal
    is_causal = query.shape[2] > 1 and mask is None and is_causal
    if torch.jit.is_tracing() and isinstance(is_causal, Tensor):
        is_causal = bool(is_causal.item())
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)
    return out.transpose(1, 2).contiguous(), None


@program("f[2,T,4] cu", tail=False, exact=False)
def attention_wrapper(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu[1:] - cu[:-1]
    splits = [torch.split(t.unsqueeze(0), lengths.tolist(), dim=2) for t in (x, x + 1, x - 1)]
    outputs = [attention_forward(LAYER, q, k, v, None)[0] for q, k, v in zip(*splits)]
    return torch.cat(outputs, dim=1)[0]


@program("f[2,T] cu")
def both_spellings_of_a_flip(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[:, s:e].flip(1) if e - s > 2 else x[:, s:e].flip(-1)
        out[:, s:e] = part
    return out


@program("f[T] cu")
def one_token_needs_no_flip(x: Tensor, cu: Tensor) -> Tensor:
    """The difference is one of work, not of meaning; here it is written so that both do the work."""
    out = x.clone()
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if part.shape[0] <= 1:
            out[cu[i] : cu[i + 1]] = part.flip(0)
        else:
            out[cu[i] : cu[i + 1]] = torch.flip(part, (0,))
    return out


@program("f[2,T] cu", depends=False)
def the_same_question_twice(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        n = e - s
        part = x[:, s:e]
        if n > 3:
            part = part * 2
        if n <= 3:
            part = part * 2
        out[:, s:e] = part + 1 if not n > 3 else part + 1
    return out


def scaled(part: Tensor, scale: Any = None) -> Tensor:
    if part.numel() and scale is not None:
        return part * scale
    return part


@program("f[T] cu")
def truth_of_a_size(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = scaled(x[s:e]).flip(0)
    return out


@program("f[T] cu")
def first_document_is_like_all(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        begin = 0 if i == 0 else cu[i] - cu[i]
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0) + begin
    return out


def rotated(x: Tensor, cu: Tensor, freqs: Tensor, ranks: int = 1) -> Tensor:
    """megatron-core since 0.15: frequencies are those of the row, or those of a longest document."""
    lengths = ((cu[1:] - cu[:-1]) // ranks).tolist()
    if freqs.dim() >= 1 and freqs.size(0) == cu[-1]:
        parts = []
        for i, part in enumerate(torch.split(x, lengths)):
            start = cu[i].item()
            parts.append(freqs[start : start + part.size(0)])
        return x * torch.cat(parts)
    return x * torch.cat([freqs[: part.size(0)] for part in torch.split(x, lengths)])


@program("f[T,4] f[T,4] cu", where=(rotated,), tail=False, depends=False)
def frequencies_of_the_row(x: Tensor, freqs: Tensor, cu: Tensor) -> Tensor:
    return rotated(x, cu, freqs)


@program("f[T,4] f[500,4] cu", where=(rotated,), tail=False)
def frequencies_of_the_longest(x: Tensor, freqs: Tensor, cu: Tensor) -> Tensor:
    return rotated(x, cu, freqs)


# ---------------------------------------------------------------- other results for documents without slots


@program("f[T,3] cu", tail=False, demand=True, exact=False)
def zeros_for_documents_without_tokens(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s == 0:
            out.append(torch.zeros(3))
            continue
        out.append(x[s:e].mean(0))
    return torch.stack(out)


@program("f[T,3] i[3] cu", tail=False, demand=True, exact=False)
def default_row_for_documents_without_tokens(x: Tensor, default: Tensor, cu: Tensor) -> Tensor:
    """The arm with tokens asks for what has no gradient where there is nothing."""
    out = []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        out.append((part * part + 1).mean(0).log() if part.shape[0] > 0 else default.float())
    return torch.stack(out)


@program("f[T] f[N] cu", demand=True, exact=False, graphs=3)
def row_of_a_table_by_a_branch(x: Tensor, table: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(table.shape[0])
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        if e > s:
            out[i] = x[s:e].mean() * table[i]
        else:
            out[i] = -1.0
    return out


@program("f[T,2] f[N,2] cu", tail=False, demand=True, exact=False, graphs=3)
def query_of_each_document(x: Tensor, q: Tensor, cu: Tensor) -> Tensor:
    """Attention of one query, whose weights are no numbers where there are no keys."""
    outs = []
    for i in range(len(cu) - 1):
        n = int(cu[i + 1]) - int(cu[i])
        if n < 1:
            outs.append(q.new_zeros(1, 2))
            continue
        keys = x[cu[i] : cu[i + 1]]
        weights = torch.softmax((keys * q[i]).sum(-1), 0)
        outs.append((weights[:, None] * keys).sum(0, keepdim=True) / weights.max())
    return torch.cat(outs)


@program("f[T] cu", tail=False, demand=True)
def copy_of_documents_without_tokens(x: Tensor, cu: Tensor) -> Tensor:
    """What is joined has no slots either way."""
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x[s:e] * 2 if s == e else x[s:e].flip(0))
    return torch.cat(parts)


@program("f[T,2] f[N,2] cu", tail=False, demand=True, exact=False, graphs=3)
def gates_behind_a_branch(x: Tensor, q: Tensor, cu: Tensor) -> Tensor:
    """The last slot of a document beside all of its slots, along another dimension."""
    outs = []
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        if e == s:
            outs.append(torch.zeros(2, 1))
            continue
        gates = (x[s:e] * q[i]).cumsum(0).t()
        last = gates[..., -1:].unsqueeze(-1)
        outs.append((last - gates[:, None, :]).softmax(-1).amax(-1))
    return torch.stack(outs)


@program("f[T,2] cu", tail=False, demand=True)
def last_token_kept_behind_a_branch(x: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        outs.append(part[-1:] * 2 if part.shape[0] > 0 else torch.zeros(1, 2))
    return torch.cat(outs)


@program("f[T,3] cu", tail=False)
def divided_by_the_length_or_one(x: Tensor, cu: Tensor) -> Tensor:
    """The value of ``or`` is the number, not whether it is one."""
    return torch.cat([x[cu[i] : cu[i + 1]] / (len(x[cu[i] : cu[i + 1]]) or 1) for i in range(len(cu) - 1)])


@program("f[T,3] cu", tail=False)
def the_length_and_more_or_the_number(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        count = e - s
        out.append(x[s:e] * (count and count + 1) + (count or i))
    return torch.cat(out)


@program("f[T,3] cu", tail=False)
def a_number_in_front_or_seven(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s:e] * (i or 7) for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist()))])
