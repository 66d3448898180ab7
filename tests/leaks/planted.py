"""Hand-written models on a packed row, each with leaks planted at lines that are marked ``# leak``, or with none."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from packpass.ops import packed_roll, segment_ids

T, WIDTH = 24, 12
CU = torch.tensor([0, 7, 15, 24])
torch.manual_seed(0)
CONV = nn.Conv1d(WIDTH, WIDTH, 3, padding=2, groups=WIDTH)
LINEAR = nn.Linear(WIDTH, WIDTH)
GRU = nn.GRU(WIDTH, WIDTH, batch_first=True)
NORM = nn.BatchNorm1d(WIDTH)
MHA = nn.MultiheadAttention(WIDTH, 2, batch_first=True)


def row(seed: int = 0) -> Tensor:
    return torch.randn(1, T, WIDTH, generator=torch.Generator().manual_seed(seed))


def same_document(cu_seqlens: Tensor) -> Tensor:
    owner = segment_ids(cu_seqlens, T)
    return owner[:, None] == owner[None, :]


# === With leaks ==============================================================================================


def convolution(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    mixed = CONV(x.transpose(1, 2))  # leak
    return x + F.silu(mixed[..., :T].transpose(1, 2))


def convolution_padded_first(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    y = F.pad(x.transpose(1, 2), (2, 0))
    y = F.conv1d(y, CONV.weight, groups=WIDTH)  # leak
    return LINEAR(y.transpose(1, 2))


def shifted_products(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    before = F.pad(x[:, :-1], (0, 0, 1, 0))  # leak
    return x * 0.5 + before * 0.5


def roll(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return LINEAR(x) + torch.roll(x, 1, 1)  # leak


def roll_wraps(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    y = torch.roll(x, 2, 1)  # leak
    return y * LINEAR(x)


def written_slices(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[:, 1:] = x[:, :-1]  # leak
    return out + x


def running_sum(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return LINEAR(x).cumsum(1)  # leak


def mean_of_the_row(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    centre = x.mean(1, keepdim=True)  # leak
    return x - centre


def causal_attention(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    q = LINEAR(x)[:, None]
    y = F.scaled_dot_product_attention(q, q, q, is_causal=True)  # leak
    return x + y[:, 0]


def attention_by_hand(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    scores = LINEAR(x) @ x.transpose(1, 2)
    scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
    weights = scores.softmax(-1)  # leak
    return x + weights @ x  # leak


def multihead(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    y, _ = MHA(x, x, x, need_weights=False)  # leak
    return x + y


def recurrence(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    state, out = torch.zeros(1, WIDTH), []
    for t in range(T):
        state = 0.9 * state + x[:, t]  # leak
        out.append(state)
    return torch.stack(out, 1)


def gru(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    y, _ = GRU(x)  # leak
    return y + x


def chunked_scan(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    chunks = F.pad(x, (0, 0, 0, 1)).reshape(1, 5, 5, WIDTH)
    inside = chunks.cumsum(2)  # leak
    return inside.reshape(1, 25, WIDTH)[:, :T] + x


def two_layers(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    y = CONV(x.transpose(1, 2))  # leak
    y = x + y[..., :T].transpose(1, 2)
    z = F.max_pool1d(y.transpose(1, 2), 3, stride=1, padding=1)  # leak
    return y + z.transpose(1, 2)


def width_of_the_row(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    wide = F.pad(x, (0, T - WIDTH))  # [1, T, T]: either dimension could be the row
    wide = wide + torch.roll(wide, 1, 1)  # leak
    return wide @ torch.ones(T, 3)


def in_half_precision(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    y = x.bfloat16()
    return y + torch.roll(y, 1, 1)  # leak


def flipped(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return x + LINEAR(x).flip(1)  # leak


class _ForgetfulBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2  # leak

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient + gradient.roll(1, 1)


def gradient_only(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return _ForgetfulBackward.apply(LINEAR(x))


# === Without =================================================================================================


def token_wise(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(LINEAR(x)), (WIDTH,)) + x


def masked_attention(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    scores = LINEAR(x) @ x.transpose(1, 2)
    weights = scores.masked_fill(~same_document(cu_seqlens), float("-inf")).softmax(-1)
    return x + weights @ x


def masked_sdpa(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    q = LINEAR(x)[:, None]
    return x + F.scaled_dot_product_attention(q, q, q, attn_mask=same_document(cu_seqlens))[:, 0]


def packed_shift(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return x + packed_roll(x, cu_seqlens, 1, 1)


def repaired_shift(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    shifted = torch.roll(x, 1, 1)
    shifted[:, cu_seqlens[:-1]] = 0
    return x + shifted


def sum_restarted(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    total = x.double().cumsum(1)
    before = F.pad(total, (0, 0, 1, 0))[:, cu_seqlens[:-1]]
    return (total - before[:, segment_ids(cu_seqlens, T)]).float()


def convolution_by_document(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    parts = [x[:, s:e].transpose(1, 2) for s, e in itertools.pairwise(cu_seqlens)]
    return torch.cat([CONV(part)[..., : part.shape[-1]] for part in parts], -1).transpose(1, 2)


def state_reset(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    starts, state, out = set(cu_seqlens.tolist()), torch.zeros(1, WIDTH), []
    for t in range(T):
        state = x[:, t] if t in starts else 0.9 * state + x[:, t]
        out.append(state)
    return torch.stack(out, 1)


def batch_statistics(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return NORM(x.transpose(1, 2)).transpose(1, 2)


def dropped_out(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return LINEAR(F.dropout(x, 0.5, training=True))


def loss_and_statistics(x: Tensor, cu_seqlens: Tensor) -> dict[str, Any]:
    y = LINEAR(x)
    return {"loss": y.pow(2).mean(), "nested": [{"hidden": y}], "load": y.softmax(-1).mean((0, 1))}


def sorted_by_expert(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    expert = LINEAR(x[0])[:, :3].argmax(-1)
    order = expert.argsort(stable=True)
    back = torch.empty_like(order)
    back[order] = torch.arange(T)
    return (x[0][order] * (1 + expert[order])[:, None])[back][None]


def width_of_the_row_alone(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return F.pad(x, (0, T - WIDTH)).softmax(-1) @ torch.ones(T, 3) + x[..., :3]


def per_document(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return torch.stack([x[0, s:e].mean(0) for s, e in itertools.pairwise(cu_seqlens)])


LEAKING: list[Callable[..., Any]] = [
    convolution, convolution_padded_first, shifted_products, roll, roll_wraps, written_slices, running_sum,
    mean_of_the_row, causal_attention, attention_by_hand, multihead, recurrence, gru, chunked_scan, two_layers,
    width_of_the_row, in_half_precision, flipped, gradient_only,
]  # fmt: skip
CLEAN: list[Callable[..., Any]] = [
    token_wise, masked_attention, masked_sdpa, packed_shift, repaired_shift, sum_restarted, convolution_by_document,
    state_reset, batch_statistics, dropped_out, loss_and_statistics, sorted_by_expert, width_of_the_row_alone,
    per_document,
]  # fmt: skip


def planted_lines(program: Callable[..., Any]) -> set[int]:
    """Lines of this file that leak in a program."""
    source = _ForgetfulBackward if program is gradient_only else program
    lines, first = inspect.getsourcelines(source)
    return {first + k for k, line in enumerate(lines) if "# leak" in line}
