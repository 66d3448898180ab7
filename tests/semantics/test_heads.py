"""Attention of several heads, written as its projections and an attention: the same numbers, or left as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from packpass.semantics import op_name
from packpass.semantics.heads import spell_out_heads

torch.manual_seed(0)
HEADS = nn.MultiheadAttention(8, 2, batch_first=True)
TIME_FIRST = nn.MultiheadAttention(8, 2, bias=False)
LATE = torch.ones(11, 11, dtype=torch.bool).triu(1)
X = torch.randn(2, 11, 8)
Program = Callable[[Tensor], Any]

SPELLED: dict[str, Program] = {
    "itself": lambda x: HEADS(x, x, x)[0],
    "without weights": lambda x: HEADS(x, x, x, need_weights=False)[0],
    "others": lambda x: HEADS(x, x * 2, x.tanh())[0],
    "few queries": lambda x: HEADS(x[:, :3], x, x)[0],
    "rows in front": lambda x: TIME_FIRST(x.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1))[0],
    "causal": lambda x: HEADS(x, x, x, attn_mask=LATE, is_causal=True, need_weights=False)[0],
    "mask": lambda x: HEADS(x, x, x, attn_mask=LATE)[0],
    "bias of every head": lambda x: HEADS(x, x, x, attn_mask=torch.arange(484.0).view(4, 11, 11).sin())[0],
}
LEFT: dict[str, Program] = {
    "weights": lambda x: HEADS(x, x, x),
    "padding": lambda x: HEADS(x, x, x, key_padding_mask=x[..., 0] > 1)[0],
    "added keys": lambda x: nn.MultiheadAttention(8, 2, batch_first=True, add_zero_attn=True)(x, x, x)[0],
    "no batch": lambda x: HEADS(x[0], x[0], x[0])[0],
}


def spelled(program: Program) -> tuple[Any, bool]:
    """What a program gives when its graph is spelled out, and whether the call is still there."""
    left: list[bool] = []

    def backend(gm: fx.GraphModule, _: Any) -> Any:
        spell_out_heads(gm.graph)
        gm.graph.lint()
        gm.recompile()
        left.append(any(op_name(node) == "multi_head_attention_forward" for node in gm.graph.nodes))
        return gm.forward

    torch._dynamo.reset()
    return torch.compile(program, backend=backend)(X), left == [True]


@pytest.mark.parametrize("program", SPELLED.values(), ids=SPELLED.keys())
def test_the_parts_give_the_same(program: Program) -> None:
    found, left = spelled(program)
    assert not left
    torch.testing.assert_close(found, program(X))


@pytest.mark.parametrize("program", LEFT.values(), ids=LEFT.keys())
def test_the_rest_is_left(program: Program) -> None:
    assert spelled(program)[1]


def test_dropout_and_autocast_are_left() -> None:
    dropping = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)

    def under_autocast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return HEADS(x, x, x)[0]

    assert spelled(lambda x: dropping(x, x, x)[0])[1]
    assert spelled(under_autocast)[1]
