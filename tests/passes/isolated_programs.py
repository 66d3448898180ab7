"""Code over packed rows ``x [1, T, 8]`` that lets documents see each other, and code that does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH = 8
Program = Callable[[Tensor, Tensor], Tensor]
"""``(x [1, T, 8], weight [8, 8, 4]) -> [1, T, ...]``."""


def with_alone_and_row(
    program: Callable[[Tensor], Tensor], bounds: tuple[int, ...], compiled: Any
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Results and gradients of packpass, of documents alone, and of the row as it is."""
    x = torch.randn(1, bounds[-1], 8, generator=torch.Generator().manual_seed(bounds[-1]), requires_grad=True)
    weights = torch.randn(1, bounds[-1], 8, generator=torch.Generator().manual_seed(1))
    outs = (
        compiled(x, torch.tensor(bounds)),
        torch.cat([program(x[:, a:b]) for a, b in pairwise(bounds)], 1),
        program(x),
    )
    ours, alone, row = ([out, *torch.autograd.grad((out * weights).sum(), x)] for out in outs)
    return ours, alone, row


def depthwise(x: Tensor, weight: Tensor) -> Tensor:
    """Padding on both sides, cut off at the end."""
    return F.conv1d(x.mT, weight[:, :1], padding=3, groups=WIDTH)[..., : x.shape[1]].mT


def depthwise_padded(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv1d(F.pad(x.mT, (3, 0)), weight[:, :1], weight[:, 0, 0], groups=WIDTH).mT


def dense(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv1d(F.pad(x.mT, (3, 0)), weight).mT


def grouped(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv1d(F.pad(x.mT, (3, 0)), weight[:, :2], groups=4).mT


def both_ways(x: Tensor, weight: Tensor) -> Tensor:
    """Slots behind the end hold 0, as the padding of a document alone does."""
    return F.conv1d(x.mT, weight[..., :3], padding=1).mT


def windows(x: Tensor, weight: Tensor) -> Tensor:
    return (F.pad(x, (0, 0, 3, 0)).unfold(1, 4, 1) * weight[:, 0]).sum(-1)


def running_sum(x: Tensor, weight: Tensor) -> Tensor:
    return x.cumsum(1) * weight[0, :, 0]


def running_largest(x: Tensor, weight: Tensor) -> Tensor:
    return x.cummax(1).values + x.sigmoid().cumprod(1)


def from_the_end(x: Tensor, weight: Tensor) -> Tensor:
    return x.flip(1).cumsum(1).flip(1)


def softmax_over_the_row(x: Tensor, weight: Tensor) -> Tensor:
    return x.softmax(1)


def sorted_row(x: Tensor, weight: Tensor) -> Tensor:
    return x.sort(1).values * weight[0, :, 0]


def largest_neighbour(x: Tensor, weight: Tensor) -> Tensor:
    return F.max_pool1d(x.mT, 3, 1, 1).mT


def mean_of_the_last(x: Tensor, weight: Tensor) -> Tensor:
    return F.avg_pool1d(F.pad(x.mT, (2, 0)), 3, 1).mT


def causal_attention(x: Tensor, weight: Tensor) -> Tensor:
    q, k, v = (x @ weight[..., i] for i in range(3))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def full_attention(x: Tensor, weight: Tensor) -> Tensor:
    q, k, v = ((x @ weight[..., i]).unflatten(-1, (2, 4)).transpose(1, 2) for i in range(3))
    return F.scaled_dot_product_attention(q, k, v, scale=0.3).transpose(1, 2).flatten(2)


def masked_attention(x: Tensor, weight: Tensor) -> Tensor:
    places = torch.arange(x.shape[1], device=x.device)
    return F.scaled_dot_product_attention(x, x, x @ weight[..., 0], attn_mask=places[None, :] <= places[:, None])


def windowed_attention(x: Tensor, weight: Tensor) -> Tensor:
    places = torch.arange(x.shape[1], device=x.device)
    far = places[:, None] - places[None, :]
    return F.scaled_dot_product_attention(x, x, x @ weight[..., 0], attn_mask=(far >= 0) & (far < 5))


def written_out_attention(x: Tensor, weight: Tensor) -> Tensor:
    length = x.shape[1]
    later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
    scores = (x @ weight[..., 0]) @ (x @ weight[..., 1]).mT / math.sqrt(WIDTH)
    return scores.masked_fill(later, -math.inf).softmax(-1) @ x


def chunks(x: Tensor, weight: Tensor) -> Tensor:
    """A linear attention in chunks of 16 tokens with a state between them."""
    length = x.shape[1]
    padded = F.pad(x, (0, 0, 0, (16 - length % 16) % 16)).unflatten(1, (-1, 16))
    k, v = padded @ weight[..., 0], padded @ weight[..., 1]
    within = (padded @ k.mT).tril() @ v
    states = (k.mT @ v).cumsum(1)
    before = F.pad(states, (0, 0, 0, 0, 1, 0))[:, :-1]
    return (within + padded @ before).flatten(1, 2)[:, :length]


def step_by_step(x: Tensor, weight: Tensor) -> Tensor:
    state, out = x.new_zeros(1, WIDTH), []
    for t in range(x.shape[1]):
        state = torch.tanh(state @ weight[..., 0] + x[:, t])
        out.append(state)
    return torch.stack(out, 1)


def written_step_by_step(x: Tensor, weight: Tensor) -> Tensor:
    state, out = x.new_zeros(1, WIDTH), torch.zeros_like(x)
    for t in range(x.shape[1]):
        state = state * 0.5 + x[:, t]
        out[:, t] = state @ weight[..., 0]
    return out


def loop_over_chunks(x: Tensor, weight: Tensor) -> Tensor:
    """As `chunks`, in a Python loop: the code is good for one number of chunks."""
    length = x.shape[1]
    padded = F.pad(x, (0, 0, 0, (16 - length % 16) % 16)).unflatten(1, (-1, 16))
    state, out = x.new_zeros(1, 1, WIDTH), torch.zeros_like(padded)
    for i in range(padded.shape[1]):
        out[:, i] = padded[:, i].cumsum(1) @ weight[..., 0] + state
        state = state + padded[:, i].sum(1, keepdim=True)
    return out.flatten(1, 2)[:, :length]


def chunks_of_multiples(x: Tensor, weight: Tensor) -> Tensor:
    """As `chunks`, with another way for a row that needs no padding."""
    length = x.shape[1]
    if length % 16:
        return chunks(x, weight)
    padded = x.unflatten(1, (-1, 16))
    k, v = padded @ weight[..., 0], padded @ weight[..., 1]
    states = (k.mT @ v).cumsum(1)
    before = F.pad(states, (0, 0, 0, 0, 1, 0))[:, :-1]
    return ((padded @ k.mT).tril() @ v + padded @ before).flatten(1, 2)


def doubled_associatively(x: Tensor, weight: Tensor) -> Tensor:
    """``h[t] = a[t] * h[t - 1] + x[t]`` in as many steps as the row's length has bits, each under ``torch.vmap``."""
    a, h, step = (x @ weight[..., 0]).sigmoid(), x, 1

    def combined(a: Tensor, h: Tensor, a_before: Tensor, h_before: Tensor) -> tuple[Tensor, Tensor]:
        return a * a_before, a * h_before + h

    while step < x.shape[1]:
        before = F.pad(a, (0, 0, step, 0), value=1.0)[:, : x.shape[1]], F.pad(h, (0, 0, step, 0))[:, : x.shape[1]]
        a, h = torch.vmap(combined, in_dims=1, out_dims=1)(a, h, *before)
        step *= 2
    return h


def steps_with_positions(x: Tensor, weight: Tensor) -> Tensor:
    """Positions of a row whose length is a number in the code, as the loop makes it one."""
    places = torch.arange(x.shape[1], device=x.device)
    return step_by_step(x * (places[:, None] + 1).float().rsqrt(), weight)


def learned_positions(x: Tensor, weight: Tensor) -> Tensor:
    table = weight.reshape(32, 8)
    return x + table[: x.shape[1]]


def sines(x: Tensor, weight: Tensor) -> Tensor:
    places = torch.arange(x.shape[1], device=x.device).float()
    return x * torch.sin(places[:, None] * torch.arange(1, 9, device=x.device))


def rows_without_a_batch(x: Tensor, weight: Tensor) -> Tensor:
    return (x[0] @ weight[..., 0]).cumsum(0)[None]


def several_parts(x: Tensor, weight: Tensor) -> Tensor:
    h = x + depthwise(x, weight)
    h = h + causal_attention(h, weight)
    return h + running_sum(F.silu(h), weight)


REWRITTEN: tuple[Program, ...] = (
    depthwise,
    depthwise_padded,
    dense,
    grouped,
    both_ways,
    windows,
    running_sum,
    running_largest,
    from_the_end,
    softmax_over_the_row,
    sorted_row,
    largest_neighbour,
    mean_of_the_last,
    causal_attention,
    full_attention,
    masked_attention,
    windowed_attention,
    written_out_attention,
    chunks,
    loop_over_chunks,
    doubled_associatively,
    step_by_step,
    written_step_by_step,
    steps_with_positions,
    learned_positions,
    sines,
    rows_without_a_batch,
    several_parts,
)
ONE_LENGTH = (step_by_step, written_step_by_step, steps_with_positions, largest_neighbour)
"""Torch compiles these for one length: Python loops over tokens are unrolled, some kernels read sizes as numbers."""
