"""Forms of operations for a batch of samples: the same numbers as torch's own, alone and under ``torch.func.vmap``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from packpass.semantics.batched import counted_form_of, form_of

Program = Callable[[Tensor, Tensor], Tensor]
WITH_A_FORM: dict[str, Program] = {
    "pad": lambda x, w: F.pad(x, (1, 2, 3, 0), value=2.0),
    "pad that cuts": lambda x, w: F.pad(x, (0, 0, -1, 2)),
    "cat": lambda x, w: torch.cat([x, x * 2, x[:, :1]], 1),
    "cat of two dtypes": lambda x, w: torch.cat([x, x.double()], -1),
    "depthwise": lambda x, w: F.conv1d(x.mT, w[:, :1], w[:, 0, 0], padding=3, groups=8),
    "dense": lambda x, w: F.conv1d(x.mT, w, padding=1),
    "grouped": lambda x, w: F.conv1d(x.mT, w[:, :4], groups=2),
    "stride": lambda x, w: F.conv1d(x.mT, w, stride=2, padding=3),
    "dilation": lambda x, w: F.conv1d(x.mT, w, dilation=2, padding=6),
    "same": lambda x, w: F.conv1d(x.mT, w, padding="same"),
    "layer_norm": lambda x, w: F.layer_norm(x, (8,), w[0, :, 0], w[0, :, 1], 1e-3),
    "causal": lambda x, w: F.scaled_dot_product_attention(x, x, x @ w[..., 0], is_causal=True),
    "masked": lambda x, w: F.scaled_dot_product_attention(x, x, x, attn_mask=(x @ x.mT) < 5, scale=0.2),
}
WITHOUT: dict[str, Program] = {
    "reflected": lambda x, w: x.flip(1),
    "product": lambda x, w: x @ w[..., 0],
    "running sum": lambda x, w: x.cumsum(1),
    "softmax": lambda x, w: x.softmax(-1),
}


def captured(program: Program) -> fx.GraphModule:
    found: list[fx.GraphModule] = []
    x, w = torch.randn(1, 11, 8), torch.randn(8, 8, 4)
    torch._dynamo.reset()
    torch.compile(program, backend=lambda gm, _: found.append(gm) or gm.forward, dynamic=False)(x, w)
    return found[0]


@pytest.mark.parametrize("program", WITH_A_FORM.values(), ids=WITH_A_FORM.keys())
def test_a_form_computes_the_same(program: Program) -> None:
    gm = captured(program)
    forms = 0
    for node in list(gm.graph.nodes):
        form = form_of(node)
        if form is not None:
            with gm.graph.inserting_before(node):
                new = gm.graph.call_function(form[0], (), form[1])
            node.replace_all_uses_with(new)
            gm.graph.erase_node(node)
            forms += 1
    assert forms
    gm.recompile()
    places = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    x, w = torch.randn(3, 1, 11, 8), torch.randn(8, 8, 4)
    order = [0 if "x" in name.split("_") else 1 for name in places]
    want = torch.stack([program(one, w) for one in x])

    def run(*args: Tensor) -> Tensor:
        return gm.forward(*args)[0]

    torch.testing.assert_close(torch.stack([run(*([one, w][i] for i in order)) for one in x]), want)
    batched = torch.func.vmap(run, in_dims=tuple([0, None][i] for i in order))(*([x, w][i] for i in order))
    torch.testing.assert_close(batched, want)


@pytest.mark.parametrize("program", WITHOUT.values(), ids=WITHOUT.keys())
def test_other_operations_are_left_to_torch(program: Program) -> None:
    assert not [node for node in captured(program).graph.nodes if form_of(node) is not None]


@pytest.mark.parametrize(
    ("program", "row"),
    [
        (lambda x, w: x.mean(1), 1),
        (lambda x, w: x.mean((1, 2), keepdim=True), 1),
        (lambda x, w: torch.mean(x, dim=-2), 1),
        (lambda x, w: x.mean(), 1),
    ],
)
def test_a_mean_of_the_slots_that_are_there(program: Program, row: int) -> None:
    (node,) = (n for n in captured(program).graph.nodes if n.op in ("call_function", "call_method"))
    form = counted_form_of(node)
    assert form is not None
    function, keywords = form
    x = torch.randn(1, 11, 8)
    padded = torch.cat([x[:, :4], torch.zeros(1, 7, 8)], 1)
    found = function(**{**keywords, "x": padded}, row=row, count=torch.tensor(4))
    torch.testing.assert_close(found, program(x[:, :4], torch.empty(0)))


def test_nothing_else_divides_by_slots() -> None:
    assert not [node for node in captured(lambda x, w: x.sum(1)).graph.nodes if counted_form_of(node) is not None]
