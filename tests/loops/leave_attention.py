"""Look-alikes of attention that is written out per document: other masks, other axes, other documents."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("d[T,4] cu", exact=False)
def without_itself(x: Tensor, cu: Tensor) -> Tensor:
    """The first query sees nothing: its weights are equal, not absent."""
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask = torch.ones(e - s, e - s).triu(0).bool()
        out[s:e] = (x[s:e] @ x[s:e].T).masked_fill(mask, -1e9).softmax(-1) @ x[s:e]
    return out


@leave("d[T,4] cu", exact=False)
def normalised_over_the_queries(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = (x[s:e] @ x[s:e].T * 0.5).softmax(0) @ (x[s:e] + 1)
    return out


@leave("d[2,T,4] cu", exact=False)
def normalised_over_the_heads(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = (x[:, s:e] @ x[:, s:e].mT).softmax(0) @ x[:, s:e]
    return out


@leave("d[T,4] cu", exact=False)
def a_finite_bias(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        bias = torch.ones(e - s, e - s).triu(1) * -3
        out[s:e] = (x[s:e] @ x[s:e].T + bias).softmax(-1) @ x[s:e]
    return out


@leave("d[T,4] cu", exact=False)
def weights_that_are_kept(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, highest = torch.zeros_like(x), torch.zeros_like(x[:, 0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        weights = (x[s:e] @ x[s:e].T).softmax(-1)
        out[s:e] = weights @ x[s:e]
        highest[s:e] = weights.sum(0)
    return out, highest


@leave("d[T,4] cu", exact=False)
def linear_attention(x: Tensor, cu: Tensor) -> Tensor:
    """No softmax at all."""
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = (x[s:e] @ x[s:e].T).tril() @ x[s:e]
    return out


@leave("d[T,4] cu", exact=False)
def softmax_twice(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = (x[s:e] @ x[s:e].T).softmax(-1).softmax(-1) @ x[s:e]
    return out


@leave("d[T,4] cu", exact=False)
def weights_of_the_wrong_side(x: Tensor, cu: Tensor) -> Tensor:
    """Every key collects what queries send to it."""
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = (x[s:e] @ (x[s:e] * 2).T).softmax(-1).T @ x[s:e]
    return out


@leave("d[T,4] cu", exact=False)
def every_other_key(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        here = torch.arange(e - s)
        odd = (here[:, None] - here[None, :]) % 2 == 1
        out[s:e] = (x[s:e] @ x[s:e].T).masked_fill(odd, float("-inf")).softmax(-1) @ x[s:e]
    return out


@leave("d[T,4] cu", exact=False)
def a_negative_temperature(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = (x[s:e] @ x[s:e].T * -0.5).softmax(-1) @ x[s:e]
    return out


@leave("d[T,4] cu", exact=False)
def mask_changed_after_its_view(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask = torch.zeros(e - s, e - s)
        seen = mask.T
        mask += torch.full((e - s, e - s), float("-inf")).triu(1)
        out[s:e] = (x[s:e] @ x[s:e].T + seen).softmax(-1) @ x[s:e]
    return out


@leave("d[T,4] cu", exact=False, min_len=1)
def keys_of_the_document_before(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(1, len(cu) - 1):
        q, k = x[cu[i] : cu[i + 1]], x[cu[i - 1] : cu[i]]
        out[cu[i] : cu[i + 1]] = (q @ k.T).softmax(-1) @ k
    return out


@leave("d[T,4] cu", exact=False, min_len=1)
def one_key_of_the_next_document(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        q, k = x[cu[i] : cu[i + 1]], x[cu[i] : cu[i + 1] + 1]
        out[cu[i] : cu[i + 1]] = (q @ k.T).softmax(-1) @ k
    return out


@leave("d[N,4] d[T,4] cu", exact=False, min_len=1, tail=False)
def the_query_of_the_next_document(q: Tensor, x: Tensor, cu: Tensor) -> Tensor:
    """The last document has none."""
    out = []
    for i in range(len(cu) - 1):
        own = q[i + 1 : i + 2]
        out.append(((own @ x[cu[i] : cu[i + 1]].T).softmax(-1) @ x[cu[i] : cu[i + 1]]).sum(0))
    return torch.stack(out)


@leave("d[T,4] cu", exact=False)
def weights_without_a_gradient(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = (x[s:e] @ x[s:e].T).softmax(-1).detach() @ x[s:e]
    return out


@leave("d[T,4] cu", exact=False)
def scores_without_a_gradient(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = (x[s:e] @ x[s:e].T).detach().softmax(-1) @ x[s:e]
    return out
