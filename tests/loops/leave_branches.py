"""Branches on a document's length, on its number or on data that are no skip: what they lead to differs."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave

DEPENDS = "what is done depends on the document"


@leave("f[2,T] cu")
def other_factor_for_long_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[:, s:e] * 2 if e - s > 2 else x[:, s:e] * 3
        out[:, s:e] = part
    return out


@leave("f[2,T] cu", must_refuse=True, why="a short document takes the factor of the one before")
def factor_of_the_last_long_document(x: Tensor, cu: Tensor) -> Tensor:
    out, factor = x.clone(), 1
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 2:
            factor = 2
        out[:, s:e] = x[:, s:e] * factor
    return out


@leave("f[2,T] cu", must_refuse=True, why="two conditions: documents of two tokens are different")
def documents_between_two_limits(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        many = 1 if e - s > 2 else 0
        several = 1 if e - s > 1 else 0
        out[:, s:e] = x[:, s:e] * (2 if many != several else 1)
    return out


@leave("f[2,T] cu", must_refuse=True, why="the branch that is not followed asks again")
def three_kinds_of_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 4:
            part = x[:, s:e] * 2
        elif e - s > 2:
            part = x[:, s:e] * 3
        else:
            part = x[:, s:e] * 2
        out[:, s:e] = part
    return out


@leave("f[2,T] cu")
def other_factor_for_the_first(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]] * (2 if i == 0 else 1)
    return out


@leave("f[2,T] cu")
def another_tensor_is_written_for_long_documents(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, other = x.clone(), x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e].flip(1)
        if e - s > 2:
            other[:, s:e] = 0
        out[:, s:e] += 1
    return out, other


@leave("f[2,T] cu", must_refuse=True, why="a list without the short documents, padded with a zero")
def appended_twice_or_once(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 2:
            parts.append(x[:, s:e])
        parts.append(x[:, s:e] * 0)
    return torch.cat([*parts, x[:, :0]], 1)


@leave("f[2,T] cu")
def counts_long_documents(x: Tensor, cu: Tensor) -> Tensor:
    out, many = x.clone(), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        many += 1 if e - s > 2 else 0
        out[:, s:e] = x[:, s:e].flip(1)
    return out + many


@leave("f[T] cu", min_len=1)
def branch_on_a_token(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e].flip(0) if x[s].item() > 0 else x[s:e]
        out[s:e] = part + 1
    return out


@leave("f[2,T] cu", must_refuse=True, why="the condition is also used as a number")
def condition_as_a_factor(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        long = e - s > 2
        part = x[:, s:e].flip(1) if long else x[:, s:e].flip(-1)
        out[:, s:e] = part * (1 + long)
    return out


@leave("f[T,4] cu")
def does_the_last_document_end_the_row(x: Tensor, cu: Tensor) -> Tensor:
    """Nothing says that it does: there may be a tail."""
    out = x.clone()
    if x.size(0) == cu[-1]:
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            out[s:e] = x[s:e].flip(0)
    else:
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            out[s:e] = x[s:e].flip(0) * 2
    return out


@leave("f[T,4] f[T,4] cu", tail=False)
def other_boundaries_end_elsewhere(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    """The branch is on other boundaries than those that split the row."""
    other = cu + 1
    parts = torch.split(x, (cu[1:] - cu[:-1]).tolist())
    if y.size(0) == other[-1]:
        return torch.cat([part.flip(0) for part in parts])
    return torch.cat([part.flip(0) * 2 for part in parts])


@leave("f[T,4] cu")
def boundaries_listed_before_the_branch(x: Tensor, cu: Tensor) -> Tensor:
    out, bounds = x.clone(), cu.tolist()
    if x.size(0) == cu[-1]:
        for s, e in zip(bounds[:-1], bounds[1:]):
            out[s:e] = x[s:e].flip(0)
    else:
        for s, e in zip(bounds[:-1], bounds[1:]):
            out[s:e] = x[s:e].flip(0) * 2
    return out


# ---------------------------------------------------------------- other results for short documents


@leave("f[T,3] cu", must_refuse=True, tail=False, min_len=1, why="documents of one token are different")
def zeros_for_single_tokens(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(torch.zeros(3) if e - s == 1 else x[s:e].sum(0))
    return torch.stack(out)


@leave("f[T,3] cu", must_refuse=True, tail=False, why="another shape for documents without tokens")
def other_shape_for_documents_without_tokens(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(torch.zeros(1, 3) if e == s else x[s:e].sum(0, keepdim=True).expand(2, 3))
    return torch.cat(out)


@leave("f[T] cu", must_refuse=True, tail=False, why="a document without tokens leaves one")
def token_for_documents_without_tokens(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x.new_ones(1) if e == s else x[s:e].flip(0))
    return torch.cat(parts)


@leave("f[T] f[N] cu", must_refuse=True, tail=False, why="the other arm has a gradient of its own")
def table_for_documents_without_tokens(x: Tensor, table: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out.append(table[i].log() if s == e else x[s:e].sum())
    return torch.stack(out)


@leave("f[T] cu", must_refuse=True, tail=False, why="the branch asks for the document before")
def branch_on_the_document_before(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(1, len(cu) - 1):
        out.append(x.new_zeros(()) if cu[i] == cu[i - 1] else x[cu[i] : cu[i + 1]].sum())
    return torch.stack([x.sum(), *out])


@leave("f[T] cu", must_refuse=True, why="a document without tokens marks the slot in front of it")
def mark_in_front_of_documents_without_tokens(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e == s:
            out[e - 1] = 7.0
        else:
            out[s:e] = out[s:e] * 2
    return out


@leave("f[T] cu", tail=False, why="what is joined has no slots, but capture takes the parts for as long as each other")
def nothing_for_documents_without_tokens(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(torch.empty(0) if s == e else x[s:e].flip(0))
    return torch.cat(parts)


@leave("f[T,3] f[3] cu", must_refuse=True, tail=False, why="without such documents the default has no gradient at all")
def learned_row_for_documents_without_tokens(x: Tensor, default: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(default if s == e else x[s:e].mean(0))
    return torch.stack(out)


@leave("f[T,2] cu", must_refuse=True, tail=False, why="a document without tokens has no last one, and adds nothing")
def last_token_behind_another_branch(x: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        factor = 2.0 if e - s > 3 else 2.0
        outs.append(x[s:e][-1:] * factor)
    return torch.cat(outs)


@leave("f[T,2] cu", must_refuse=True, tail=False, why="the branch goes the other way")
def last_token_of_documents_without_tokens(x: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outs.append(torch.ones(1, 2) if e > s else x[s:e][-1:].sum(0, keepdim=True))
    return torch.cat(outs)


@leave("f[T,2] cu", must_refuse=True, tail=False, why="the last token is a view, through which the row is written")
def last_token_written_behind_a_branch(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, sums = x.clone(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e == s:
            sums.append(torch.zeros(2))
            continue
        last = out[s:e][-1:]
        last.mul_(3)
        sums.append(last.sum(0))
    return out, torch.stack(sums)


@leave("f[T,2] cu", must_refuse=True, tail=False, why="the row is written while a view of its last token is there")
def last_token_read_after_its_row_was_written(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, lasts = x.clone(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e == s:
            lasts.append(torch.zeros(2))
            continue
        part = out[s:e]
        last = part[-1:].squeeze(0)
        part.mul_(2)
        lasts.append(last)
    return out, torch.stack(lasts)


@leave("f[T,2] cu", must_refuse=True, tail=False, why="the views in the list are of a row that is written to")
def last_tokens_read_behind_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    out, lasts = x.clone(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        lasts.append(out[s:e][-1:] if e > s else torch.zeros(1, 2))
    out.mul_(2)
    return torch.cat(lasts)


@leave("f[T] f[T] cu", must_refuse=True, tail=False, why="no slots of the other give it a gradient of zeros")
def another_row_for_documents_without_tokens(x: Tensor, other: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(other[s:e] if e == s else x[s:e].flip(0))
    return torch.cat(parts)
