"""What the ranks run for test_megatron_mamba.py: megatron-core's own class, as it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters

import packpass
from tests.dist.cp_programs import check, executed, group_of
from tests.ops import reference

INNER, HEADS, GROUPS, STATE, ROWS, BATCH = 32, 8, 4, 6, 12, 2


def layer(group: Any, groups: int) -> Any:
    """Only the changes of layout are called: the parameters stay meta tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it misses optional packages that play no part here
        from megatron.core.ssm.mamba_context_parallel import MambaContextParallel
    with torch.device("meta"):
        channels = INNER + 2 * groups * STATE
        conv = nn.Conv1d(channels, channels, 4, groups=channels)
        vectors = [torch.empty(HEADS) for _ in range(3)]
    return MambaContextParallel(group, INNER, HEADS, groups, STATE, conv, *vectors, False)


def step(call: Callable[..., Tensor], x: Tensor, group: Any) -> tuple[list[Tensor], list[int]]:
    leaf = x.clone().requires_grad_()
    out, forward = executed(group, lambda: call(leaf))
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape)
    (grad,), backward = executed(group, lambda: torch.autograd.grad(out, leaf, weights))
    return [out.detach(), grad], [forward, backward]


def stock_gradients_are_right(cp: int) -> bool:
    """Does torch.compile without packpass keep the gradient of an exchange inside an autograd.Function?"""
    torch._dynamo.reset()
    group = group_of(cp)
    mixer = layer(group, GROUPS)
    x = torch.randn(2 * ROWS * cp, BATCH, INNER // cp)
    expected, _ = step(mixer.post_conv_ssm, x, group)
    got, _ = step(torch.compile(mixer.post_conv_ssm, backend="eager"), x, group)
    return all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def both_ways(cp: int, groups: int, inner: str) -> dict[str, Any]:
    """``pre_conv_ssm`` and ``post_conv_ssm`` in eager mode and through packpass; collectives of a step each."""
    torch._dynamo.reset()
    counters.clear()
    group = group_of(cp)
    mixer = layer(group, groups)
    widths = 2 * INNER + 2 * groups * STATE + HEADS
    torch.manual_seed(dist.get_rank())
    inputs = {
        "pre_conv_ssm": torch.randn(2 * ROWS, BATCH, widths),
        "post_conv_ssm": torch.randn(2 * ROWS * cp, BATCH, INNER // cp),
    }
    counts: dict[str, Any] = {}
    for name, x in inputs.items():
        program = getattr(mixer, name)
        report = packpass.explain(program, fullgraph=True, options={"packpass.inner_backend": "eager"})(x)
        torch._dynamo.reset()
        options = {"packpass.inner_backend": inner}
        call = torch.compile(program, backend=packpass.backend, fullgraph=True, options=options)
        expected, eager = step(program, x, group)
        for _ in range(2):
            got, ours = step(call, x, group)
            for a, b in zip(got, expected, strict=True):
                check(reference.same(a, b), name, cp, groups, inner)
        counts[name] = eager, ours, [r.before for r in report.rewrites]
    return counts


def whole_layer(cp: int, inner: str) -> list[list[int]]:
    """Both, with a convolution and a gate between, as a mixer uses them."""
    torch._dynamo.reset()
    group = group_of(cp)
    mixer = layer(group, GROUPS)
    local, states = INNER // cp, GROUPS * STATE // cp
    weight = torch.linspace(-1, 1, (local + 2 * states) * 4).view(-1, 1, 4)

    def mix(x: Tensor) -> Tensor:
        z, rest = torch.split(mixer.pre_conv_ssm(x), [local, local + 2 * states + HEADS // cp], dim=-1)
        xbc, dt = torch.split(rest, [local + 2 * states, HEADS // cp], dim=-1)
        moved = nn.functional.conv1d(xbc.permute(1, 2, 0), weight, padding=3, groups=local + 2 * states)
        y = moved[:, :local, : x.shape[0] * cp].permute(2, 0, 1) * dt.repeat_interleave(INNER // HEADS, -1)
        return mixer.post_conv_ssm((y * nn.functional.silu(z)).contiguous())

    torch.manual_seed(dist.get_rank())
    x = torch.randn(2 * ROWS, BATCH, 2 * INNER + 2 * GROUPS * STATE + HEADS)
    expected, eager = step(mix, x, group)
    options = {"packpass.inner_backend": inner}
    call = torch.compile(mix, backend=packpass.backend, fullgraph=True, options=options)
    got, ours = step(call, x, group)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
    return [eager, ours]
