"""A layer in the way of a gated delta net, under context parallelism: every rank has some tokens, then some heads.

projection -> shards of the heads -> causal convolution, gated delta rule -> shards of the tokens -> output projection

All of it is plain torch. The recurrence is behind an op, where real layers have a kernel: compilers see one call. Over
tokens t of a document, for each head, with state S ``[D, D]`` that starts at zero::

    S = exp(decay[t]) * S
    S = S + outer(k[t], beta[t] * (v[t] - k[t] @ S))
    out[t] = q[t] @ S
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 64

# (x, cu_seqlens, sections) -> x in the other layout
Exchange = Callable[[Tensor, Tensor, list[int]], Tensor]


@dataclasses.dataclass(frozen=True)
class GDNConfig:
    """``heads`` divide among the ranks; ``kernel`` is the width of the convolution in tokens."""

    hidden: int = 512
    heads: int = 8
    size: int = 32
    kernel: int = 4

    @property
    def sections(self) -> list[int]:
        """Widths of q, k, v, gate, beta and decay."""
        width = self.heads * self.size
        return [width, width, width, width, self.heads, self.heads]


class GatedDeltaNet(nn.Module):
    """``forward`` takes x ``[T / cp, hidden]`` and the two changes of layout, and gives ``[T / cp, hidden]``.

    Convolution and decays have parameters for all heads; a rank uses those of its own.
    """

    def __init__(self, config: GDNConfig, rank: int, cp: int) -> None:
        super().__init__()
        self.config, self.rank, self.cp = config, rank, cp
        self.project = nn.Linear(config.hidden, sum(config.sections), bias=False)
        self.out = nn.Linear(config.heads * config.size, config.hidden, bias=False)
        self.taps = nn.Parameter(torch.randn(3, config.kernel, config.heads, config.size) / config.kernel)
        self.rate = nn.Parameter(torch.zeros(config.heads))

    def forward(self, x: Tensor, cu_seqlens: Tensor, to_heads: Exchange, to_tokens: Exchange) -> Tensor:
        sections, size = self.config.sections, self.config.size
        heads = self.config.heads // self.cp
        mine = slice(self.rank * heads, (self.rank + 1) * heads)
        whole = to_heads(self.project(x), cu_seqlens, sections)
        q, k, v, gate, beta, decay = whole.split([width // self.cp for width in sections], -1)
        positions, document = tokens_of(cu_seqlens, whole.shape[0])
        qkv = torch.stack((q, k, v)).unflatten(-1, (heads, size))
        q, k, v = F.silu(causal_conv(qkv, self.taps[:, :, mine], positions)).unbind(0)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        decay = -F.softplus(decay + self.rate[mine])
        mixed = gated_delta_rule(q, k, v, torch.sigmoid(beta), decay, document)
        mixed = mixed.flatten(1) * F.silu(gate)
        return self.out(to_tokens(mixed, cu_seqlens, [self.config.heads * size]))


def tokens_of(cu_seqlens: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Position of every token inside its document, and the document; int64 ``[T]`` each. Documents fill the row."""
    cu = cu_seqlens.long()
    slots = torch.arange(total, device=cu.device)
    document = torch.bucketize(slots, cu[1:-1], right=True)
    return slots - cu.index_select(0, document), document


def causal_conv(x: Tensor, taps: Tensor, positions: Tensor) -> Tensor:
    """``out[t] = sum over d of taps[d] * x[t - d]`` inside documents.

    Args:
        x: ``[3, T, heads, D]``. taps: ``[3, K, heads, D]``. positions: ``[T]``, of the tokens in their documents.
    """
    out = x * taps[:, :1]
    for d in range(1, taps.shape[1]):
        shifted = F.pad(x[:, :-d], (0, 0, 0, 0, d, 0))
        out = out + torch.where((positions >= d)[:, None, None], shifted, 0.0) * taps[:, d : d + 1]
    return out


# === The recurrence =============================================================================================


def chunked(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, document: Tensor) -> Tensor:
    """The recurrence as matrix products inside chunks and one state from chunk to chunk.

    Args:
        q, k, v: ``[T, heads, D]``; T divides by CHUNK.
        beta, decay: ``[T, heads]``; decay is a logarithm, <= 0.
        document: ``[T]``, nondecreasing.
    """
    size = q.shape[-1]
    # [chunks, heads, CHUNK, ...]
    q, k, v = (t.unflatten(0, (-1, CHUNK)).transpose(1, 2) for t in (q, k, v))
    beta, decay = (t.unflatten(0, (-1, CHUNK)).transpose(1, 2) for t in (beta, decay))
    own = document.view(-1, 1, CHUNK)
    before = torch.cat((own.new_full((1, 1, 1), -1), own[:-1, :, -1:]))  # the document that the state comes from

    passed = decay.cumsum(-1)
    same = (own.unsqueeze(-1) == own.unsqueeze(-2)).tril()
    # Masked before exp: of two documents' tokens the difference means nothing and may overflow.
    between = torch.where(same, passed.unsqueeze(-1) - passed.unsqueeze(-2), -torch.inf).exp()
    since = torch.where(own == before, passed, -torch.inf).exp()
    left = torch.where(own == own[:, :, -1:], passed[..., -1:] - passed, -torch.inf).exp()

    weighted = beta.unsqueeze(-1) * (k @ k.mT) * between
    sides = torch.cat((v, k * since.unsqueeze(-1)), -1) * beta.unsqueeze(-1)
    solved = torch.linalg.solve_triangular(weighted.tril(-1), sides, upper=False, unitriangular=True)
    values, keys = solved.split(size, -1)
    scores = (q @ k.mT) * between
    queries, kept = q * since.unsqueeze(-1), (k * left.unsqueeze(-1)).mT

    state = q.new_zeros(q.shape[1], size, size)
    outs = []
    for c in range(q.shape[0]):
        new = torch.baddbmm(values[c], keys[c], state, alpha=-1)
        outs.append(torch.baddbmm(scores[c] @ new, queries[c], state))
        state = torch.baddbmm(since[c, :, -1, None, None] * state, kept[c], new)
    return torch.stack(outs).transpose(1, 2).flatten(0, 1)


@torch.library.custom_op("packpass_perf::gated_delta_rule", mutates_args=())
def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, document: Tensor) -> Tensor:
    """:func:`chunked` as an op."""
    return chunked(q, k, v, beta, decay, document).contiguous()


@gated_delta_rule.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, document: Tensor) -> Tensor:
    return q.new_empty(q.shape)


@torch.library.custom_op("packpass_perf::gated_delta_rule_backward", mutates_args=())
def _backward(grad: Tensor, inputs: list[Tensor], document: Tensor) -> list[Tensor]:
    def gradients() -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in inputs]
        q, k, v, beta, decay = leaves
        found = torch.autograd.grad(chunked(q, k, v, beta, decay, document), leaves, grad)
        return [g.contiguous() for g in found]

    # Inside an op autograd is switched off for this thread, and for this thread only.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(gradients).result()


@_backward.register_fake
def _(grad: Tensor, inputs: list[Tensor], document: Tensor) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in inputs]


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *inputs, document = ctx.saved_tensors
    return *_backward(grad, inputs, document), None


gated_delta_rule.register_autograd(_gradients, setup_context=_setup_context)
