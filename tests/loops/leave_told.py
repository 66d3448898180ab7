"""Look-alikes of numbers that say how many documents there are: of layers, numbers that change before they are read,
states from document to document."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import leave
from .rewrite_told import padded, told


@leave("f[T,3] cu64", wrap=told, tail=False)
def a_number_of_layers(x: Tensor, cu: Tensor, n: int) -> Tensor:
    for _ in range(n):
        x = x * 1.5
    return x + cu[0]


@leave("f[T,3] cu64", wrap=padded, tail=False)
def a_tensor_of_layers(x: Tensor, cu: Tensor, n: Tensor) -> Tensor:
    for _ in range(n):
        x = x * 1.5
    return x + cu[0]


@leave("f[T,3] cu64", wrap=padded, tail=False, mutates=True)
def a_number_that_changes(x: Tensor, cu: Tensor, n: Tensor) -> Any:
    documents = n - 1
    n.add_(3)
    out = torch.zeros_like(x)
    for i in range(documents.item()):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0) * n
    return out, n


@leave("f[T,3] cu64", wrap=padded, tail=False, mutates=True)
def a_number_that_has_changed(x: Tensor, cu: Tensor, n: Tensor) -> Any:
    n.sub_(1)
    out = torch.zeros_like(x)
    for i in range(n.item()):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0)
    return out, n


@leave(
    "f[T,3] cu64", wrap=padded, tail=False, must_refuse=True, exact=False,
    why="every document begins with what the one before has left",
)  # fmt: skip
def a_state_up_to_a_number(x: Tensor, cu: Tensor, n: Tensor) -> Tensor:
    state, parts = x.new_zeros(3), []
    for i in range(int(n)):
        part = x[cu[i] : cu[i + 1]]
        parts.append(part + state)
        state = state * 0.5 + part.sum(0)
    return torch.cat(parts)


@leave("f[T,3] cu64", wrap=told, tail=False)
def heads_beside_documents(x: Tensor, cu: Tensor, n: int) -> Tensor:
    out = [part * n for part in x.split(3, 1)]
    for head in range(n):
        out.append(x * head)
    return torch.stack(out).sum(0)


@leave("f[T,3] cu64", wrap=padded, tail=False)
def a_vector_that_changes_in_the_body(x: Tensor, cu: Tensor, n: Tensor) -> Tensor:
    cu, out = cu.clone(), torch.zeros_like(x)
    for i in range(int(n)):
        own = cu[: n + 1]
        out[own[i] : own[i + 1]] = x[own[i] : own[i + 1]].flip(0)
        cu[i] = 0
    return out
