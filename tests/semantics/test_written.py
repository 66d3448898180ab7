"""What a call writes to: every form that torch has, and whatever is not known."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from packpass.semantics.effects import written_inputs

IDS = torch.tensor([1, 2])


@pytest.fixture
def library() -> Iterator[Any]:
    made = torch.library.Library("packpass_test_writes", "FRAGMENT")
    for text in ("poke(Tensor(a!) x) -> ()", "look(Tensor x) -> Tensor"):
        made.define(text)
    made.impl("poke", lambda x: None, "CompositeExplicitAutograd")
    made.impl("look", lambda x: x + 1, "CompositeExplicitAutograd")
    torch.library.register_fake("packpass_test_writes::poke", lambda x: None, lib=made)
    torch.library.register_fake("packpass_test_writes::look", lambda x: x + 1, lib=made)
    yield torch.ops.packpass_test_writes
    made._destroy()


@torch.compiler.allow_in_graph
def clone(x: Tensor) -> Tensor:
    return x.add_(1)


@torch.compiler.allow_in_graph
def running_mean(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Looks like attention."""
    k.add_(1)
    return q + v


class Scaled(torch.autograd.Function):
    """Reads; its backward reads what was kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return torch.empty_like(x).copy_(x * by)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.by, None


class Filled(Scaled):
    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x.fill_(by) * 1


class Seen(Scaled):
    """Its result is a view of what it is given, through which others may write."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x.view(-1)


class Kept(Scaled):
    """Its backward gets hold of what the forward was given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * x.mul_(2), None


def written_by(fn: Callable[..., Any], *args: Any) -> bool:
    """May any call that ``fn`` makes write to its first argument?"""
    found: list[bool] = []

    def look(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        first = next(n for n in gm.graph.nodes if n.op == "placeholder" and "x" in n.name)
        found.append(any(first in written_inputs(n) for n in gm.graph.nodes))
        return gm.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(fn, backend=look, fullgraph=True)(*args)
    return found[0]


def method(name: str, value: float) -> Callable[[Tensor], Any]:
    return lambda x: getattr(x, name)(value)


stepped = functools.partial(
    torch._fused_sgd_,
    **{"weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0},
    **{"nesterov": False, "maximize": False, "is_first_step": False},
)
IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__")
WRITE: dict[str, Callable[[Tensor], Any]] = {
    "add_": lambda x: x.add_(1),
    "torch.relu_": lambda x: torch.relu_(x),
    "out": lambda x: torch.mul(x, 2, out=x),
    "F.relu inplace": lambda x: F.relu(x, inplace=True),
    "F.relu by position": lambda x: F.relu(x, True),
    "setitem": lambda x: x.__setitem__(0, 1.0),
    "data": lambda x: setattr(x, "data", x * 2),
    "foreach, by the schema alone": lambda x: stepped([x + 1], [x + 2], [x]),
    "foreach, not the first": lambda x: torch._foreach_mul_([torch.ones(3), x], 2),
    "foreach": lambda x: torch._foreach_mul_([x], 2),
    "aten packet": lambda x: torch.ops.aten.add_(x, 1),
    "aten overload": lambda x: torch.ops.aten.add_.Tensor(x, 1),
    "embedding with max_norm": lambda x: F.embedding(IDS, x, max_norm=1.0),
    "embedding_bag with max_norm": lambda x: F.embedding_bag(IDS[None], x, max_norm=1.0),
    "running statistics": lambda x: F.batch_norm(torch.ones(2, 4), x, torch.ones(4), training=True),
    **{name: method(name, 2.0) for name in IN_PLACE},
    "a user's function": clone,
    "a user's function of rows": lambda x: running_mean(x * 2, x, x * 3, IDS),
}
BITS = {name: method(name, 1) for name in ("__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__")}
READ: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda x: x + 1,
    "clone": lambda x: x.clone(),
    "F.relu": lambda x: F.relu(x),
    "F.relu not in place": lambda x: F.relu(x, False),
    "embedding": lambda x: F.embedding(IDS, x),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "aten packet": lambda x: torch.ops.aten.add(x, 1),
    "running statistics that are used": lambda x: F.batch_norm(torch.ones(2, 3), x[0], x[1], training=False),
    "numbers": lambda x: x[x.shape[0] - 1 :],
    "other memory": lambda x: torch.zeros_like(x).add_(x),
    "split": lambda x: [part + 1 for part in x.split(1)],
}


@pytest.mark.parametrize("fn", WRITE.values(), ids=WRITE.keys())
def test_writes(fn: Callable[[Tensor], Any]) -> None:
    x = torch.ones(4) if fn is WRITE["running statistics"] else torch.ones(4, 3)
    assert written_by(fn, x)


@pytest.mark.parametrize("fn", BITS.values(), ids=BITS.keys())
def test_writes_bits(fn: Callable[[Tensor], Any]) -> None:
    assert written_by(fn, torch.ones(4, dtype=torch.int64))


@pytest.mark.parametrize("fn", READ.values(), ids=READ.keys())
def test_only_reads(fn: Callable[[Tensor], Any]) -> None:
    assert not written_by(fn, torch.ones(4, 3))


def test_operators_of_others_are_asked(library: Any) -> None:
    """Dynamo puts down the packet, whose name says nothing, for ``torch.ops.x.poke(y)``."""
    assert written_by(lambda x: library.poke(x), torch.ones(3))
    assert written_by(lambda x: library.poke.default(x), torch.ones(3))
    assert not written_by(lambda x: library.look(x), torch.ones(3))


@pytest.mark.parametrize(("function", "writes"), [(Scaled, False), (Filled, True), (Seen, True), (Kept, True)])
def test_functions_of_autograd(function: Any, writes: bool) -> None:
    """What they are given is written if the forward does, or if somebody who runs later gets hold of it."""
    found: list[bool] = []

    def look(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        calls = [n for n in gm.graph.nodes if "autograd_function_apply" in str(n.target)]
        found.extend(bool(written_inputs(call)) for call in calls)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(lambda x: function.apply(x * 1, 2.0), backend=look, fullgraph=True)(torch.ones(3, requires_grad=True))
    assert found == [writes]
