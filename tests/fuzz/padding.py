"""Random padded models: operations on hidden states between attentions, some that mix tokens, some results that do.

A model is right if its real tokens, what it makes of all of them, and the gradients at real tokens are eager's.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import packpass
from tests.sources import defined

from .families import collected
from .found import UNDEFINED, Found

WIDTH = 4
BATCHES = (((7, 3, 5), 8), ((2, 9, 9, 1), 9), ((4,), 6))
MASKS = {
    "bool": "mask[:, None, None, :].bool()",
    "causal": "mask[:, None, None, :].bool() & torch.ones(S, S, dtype=torch.bool).tril()",
    "additive": "(1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min",
    "where": "torch.where(mask[:, None, None, :] > 0, 0.0, float('-inf')).to(x.dtype)",
    "filled": "torch.zeros(B, 1, 1, S, dtype=x.dtype).masked_fill(mask[:, None, None] == 0, float('-inf'))",
}
TOKENWISE = (
    "h * 2", "h + bias", "h @ weight", "F.linear(h, weight, bias)", "F.gelu(h)", "F.layer_norm(h, (4,))",
    "h * F.silu(h @ weight)", "h.view(B, S, 2, -1).transpose(2, 3).reshape(h.shape)", "h + places[:S]",
    "h.cumsum(-1)", "h * mask[..., None]", "torch.cat(h.chunk(2, -1)[::-1], -1)", "h.softmax(-1)", "h.flip(-1)",
    "h + torch.arange(S)[:, None]", "h.flatten(0, 1).relu().unflatten(0, (B, S))", "h / h.norm(dim=-1, keepdim=True)",
    "torch.where(h > 0, h, h.exp() - 1)", "h.masked_fill(mask[..., None] == 0, 0)",
    "h.permute(2, 0, 1).permute(1, 2, 0)", "torch.einsum('bsd,de->bse', h, weight)",
    "h + places[(mask.cumsum(1) - 1).clamp(min=0)]", "h.clone()",
    "h - h.mean(-1, keepdim=True)", "torch.stack(h.unbind(-1), -1)", "h.double()", "h + x", "h.roll(1, -1)",
    "h.reshape(-1, 4)[torch.arange(B * S)].view(B, S, 4)", "h.sort(-1).values", "h.clamp(-2, 2).square()",
)  # fmt: skip
MIXING = (
    "h.cumsum(1)", "h.flip(1)", "h + h.mean(1, keepdim=True)", "torch.roll(h, 1, 1)", "h.softmax(1)", "h.flip(0)",
    "h - h.amax((0, 1))", "h.sort(1).values", "h.transpose(0, 1).reshape(h.shape)", "h + h[:, :1]", "h + h[:, -1:]",
    "h + h.sum()", "F.pad(h, (0, 0, 1, -1))", "torch.cat((h[:, 1:], h[:, :1]), 1)",
    "h.reshape(S, B, 4).reshape(B, S, 4)",
    "F.avg_pool1d(h.transpose(1, 2), 3, 1, 1).transpose(1, 2)", "h.cummax(1).values", "h - h.std()", "h.roll(1, 0)",
    "h * (h > h.median()).to(h.dtype)", "F.batch_norm(h.flatten(0, 1), None, None, training=True).view(h.shape)",
)  # fmt: skip
RESULTS = (
    "h", "h", "h @ weight", "h * mask[..., None]", "(h * mask[..., None]).sum()", "h[mask.bool()].sum(0)",
    "(h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)", "h[:, 0]", "h[torch.arange(B), mask.sum(1) - 1]",
    "F.cross_entropy(h.flatten(0, 1), ids.masked_fill(mask == 0, -100).flatten(), ignore_index=-100)",
    "F.cross_entropy(h[:, :-1].transpose(1, 2), ids.masked_fill(mask == 0, -100)[:, 1:], ignore_index=-100)",
    "h.masked_fill(mask[..., None] == 0, -9).amax(1)", "(h.square().mean(-1) * mask).sum() / mask.sum()",
)  # fmt: skip


def text(seed: int) -> str:
    """Source of ``program(x, mask, ids, weight, bias, places)``."""
    rng = random.Random(seed)
    mask = MASKS[rng.choice(list(MASKS))]
    attend = "F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None], attn_mask=shown)[:, 0]"
    if rng.random() < 0.3 and "bool" not in mask:
        attend = "((h[:, None] @ h[:, None].transpose(-1, -2) / 2 + shown).softmax(-1) @ h[:, None])[:, 0]"
    lines = ["B, S, _ = x.shape", f"shown = {mask}", "h = x @ weight"]
    for _ in range(rng.randint(1, 2)):
        lines.append(f"h = h + {attend}")
        for _ in range(rng.randint(0, 3)):
            lines.append(f"h = {rng.choice(MIXING if rng.random() < 0.08 else TOKENWISE)}")
    lines += [f"h = h + {attend}"] if rng.random() < 0.5 else []
    shown = sorted(rng.sample(RESULTS, rng.randint(1, 2)), key=RESULTS.index)
    body = "\n".join("    " + line for line in lines)
    return f"def program(x, mask, ids, weight, bias, places):\n{body}\n    return {', '.join(shown)},\n"


def batch(lengths: tuple[int, ...], longest: int) -> list[Tensor]:
    """Arguments; padding holds numbers like any other."""
    rng = torch.Generator().manual_seed(sum(lengths))
    x = torch.randn(len(lengths), longest, WIDTH, generator=rng, dtype=torch.float64).requires_grad_()
    mask = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(0, WIDTH, (len(lengths), longest), generator=rng)
    shapes = ((WIDTH, WIDTH), (WIDTH,), (16, WIDTH))
    return [x, mask, ids, *(torch.randn(s, generator=rng, dtype=torch.float64).requires_grad_() for s in shapes)]


def observed(fn: Any, given: tuple[tuple[int, ...], int]) -> list[Tensor]:
    """Results and gradients, zero at padding."""
    arguments = batch(*given)
    results = fn(*arguments)
    mask = arguments[1].bool()
    kept = [torch.where(mask[..., None], r, 0) if r.dim() == 3 else r for r in results]
    loss = sum((r * (torch.arange(r.numel()).view(r.shape) % 7 - 3.5)).sum() for r in kept)
    assert isinstance(loss, Tensor)
    loss.backward()
    x, *weights = (t for t in arguments if t.requires_grad)
    gradient = torch.where(mask[..., None], x.grad, 0) if x.grad is not None else torch.zeros(())
    return [
        *(r.detach() for r in kept), gradient, *(w.grad if w.grad is not None else torch.zeros(()) for w in weights)
    ]  # fmt: skip


def judge(seed: int) -> Found:
    """The program of one seed."""
    source = text(seed)
    fn = defined(source, f"<padded-{seed}>", torch=torch, F=F)
    options = {"packpass.inner_backend": "eager", "packpass.eliminate_padding": True}
    compiled = torch.compile(fn, backend=packpass.backend, options=options)
    with collected() as report, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for given in BATCHES:
            try:
                wants = observed(fn, given)
            except Exception:
                return UNDEFINED
            if not all(want.isfinite().all() for want in wants):
                return UNDEFINED  # what NaN in padding becomes in results is not kept
            try:
                gots = observed(compiled, given)
            except Exception as error:
                return Found("wrong", True, f"{given}: raised {type(error).__name__}: {error}\n{source}")
            for k, (want, got) in enumerate(zip(wants, gots, strict=True)):
                if want.shape != got.shape or not torch.allclose(want, got, rtol=1e-6, atol=1e-8, equal_nan=True):
                    return Found("wrong", True, f"{given}: value {k}: {want}\n{got}\n{source}")
    return Found("right", any(r.rule == "eliminate_padding" for r in report.rewrites))
