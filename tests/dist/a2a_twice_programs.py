"""Programs of `a2a_hard_programs` that exchange a document more than once (there, something, and back), and functions
that exchange whole documents, order included."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.dist.a2a_moves import gather_sequence, gathered, scatter_sequence, size_of, unzigzag, zigzag


def scattered(y: Tensor, group: Any) -> Tensor:
    return scatter_sequence(zigzag(y, size_of(group)), group)


def there_and_back(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    for i in range(len(cu) - 1):
        heads = gathered(x[cu[i] // cp : cu[i + 1] // cp], group)
        out.append(scattered(heads * heads + 1, group))
    return torch.cat(out)


def back_into_the_row(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, row = size_of(group), x.clone()
    for s, e in pairwise(cu.tolist()):
        row[s // cp : e // cp] = scattered(F.relu(gathered(x[s // cp : e // cp], group)), group)
    return row


def added_to_the_document(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The document itself is used again, and how long it was."""
    cp, out = size_of(group), []
    for s, e in pairwise(cu.tolist()):
        document = x[s // cp : e // cp]
        heads = gathered(document, group)
        heads = heads.view(heads.shape[0], 2, heads.shape[1] // 2).sign().flatten(1)
        out.append(document + scattered(heads, group)[: document.shape[0]])
    return torch.cat(out)


def added_to_a_part_of_a_split(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    out = []
    for part in x.split((cu.diff() // size_of(group)).tolist()):
        out.append(part + scattered(F.relu(gathered(part, group)), group))
    return torch.cat(out)


def back_and_there(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Two documents there, one of them computed, one back, and there again."""
    cp, out = size_of(group), []
    for s, e in pairwise(cu.tolist()):
        one, two = (gathered(part, group) for part in (x[s // cp : e // cp], x[s // cp : e // cp] * 2))
        out.append(gathered(scattered(one * two, group) + 1, group))
    return torch.cat(out)


def two_lists(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A document is exchanged as it is, and another time computed: not one without the other."""
    cp, queries, keys = size_of(group), [], []
    for i in range(len(cu) - 1):
        document = x[cu[i] // cp : cu[i + 1] // cp]
        queries.append(gathered(document, group))
        keys.append(gathered(document * 0.5, group))
    return torch.cat([torch.cat(queries), torch.cat(keys)], -1)


class Documents(torch.autograd.Function):
    """Zigzag is undone inside, and done again in the backward."""

    @staticmethod
    def forward(ctx: Any, document: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return gathered(document, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return scattered(grad, ctx.group), None


class DocumentsInOrder(Documents):
    """The backward forgets to bring the chunks back in order."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return scatter_sequence(grad, ctx.group), None


def function_of_documents(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    return torch.cat([Documents.apply(x[s // cp : e // cp], group) for s, e in pairwise(cu.tolist())])


# === Left as they are ===========================================================================================


def received_used_twice(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What comes back depends on tokens in the order of the ranks as well."""
    cp, out = size_of(group), []
    for s, e in pairwise(cu.tolist()):
        received = gather_sequence(x[s // cp : e // cp], group)
        out.append(scattered(unzigzag(received, cp) * received.cumsum(0), group))
    return torch.cat(out)


def next_document_written(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What is exchanged for the next document depends on what came of this one."""
    cp, row, out = size_of(group), x.clone(), []
    for s, e in pairwise(cu.tolist()):
        out.append(scattered(torch.tanh(gathered(row[s // cp : e // cp], group)), group))
        row[e // cp :] *= 2
    return torch.cat(out)


def back_in_order(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Zigzag shards come, and whole stretches go back."""
    cp, out = size_of(group), []
    for s, e in pairwise(cu.tolist()):
        out.append(scatter_sequence(torch.tanh(gathered(x[s // cp : e // cp], group)), group))
    return torch.cat(out)


def function_that_forgets(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    return torch.cat([DocumentsInOrder.apply(x[s // cp : e // cp], group) for s, e in pairwise(cu.tolist())])


def attention_between(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Boundaries as two lists, cut for shards; heads are repeated by sizes that are read from what came."""
    cp, out = size_of(group), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        part = x[s // cp : e // cp]
        queries, keys = gathered(part, group), gathered(part * 2, group)
        length, width = keys.shape
        keys = keys.view(length, 1, width)[:, :, None].expand(length, 1, 2, width).reshape(length, 2, width)
        q, k = torch.stack([queries, queries - 1], 1).transpose(0, 1)[None], keys.transpose(0, 1)[None]
        found = F.scaled_dot_product_attention(q, k, k, is_causal=True)[0].sum(0)
        out.append(scattered(found, group))
    return torch.cat(out)


def sizes_of_the_shard(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """How long the document is between the exchanges is counted on the rank's own part of it."""
    cp, out = size_of(group), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        part = x[s // cp : e // cp]
        heads = gathered(part, group)
        places = torch.arange(part.shape[0] * cp).to(x.dtype)
        out.append(scattered(heads * places[:, None], group))
    return torch.cat(out)


def one_more_than_the_shard(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        part = x[s // cp : e // cp]
        heads = gathered(part, group)
        places = torch.arange(part.shape[0] + 1).to(x.dtype)
        out.append(scattered(heads * places[-1], group))
    return torch.cat(out)
