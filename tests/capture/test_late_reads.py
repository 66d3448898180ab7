"""Tensors that a backward reads from its own class: as they are when it runs, without a graph break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

import packpass

from .support import compiled

READ = torch.ops.packpass.read_class_tensor.default


class Scaler(torch.autograd.Function):
    scale: Any = torch.tensor(1.0)

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return hidden

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (loss,) = ctx.saved_tensors
        return grad, torch.ones_like(loss) * Scaler.scale


class Helped(torch.autograd.Function):
    """Reads in a function that the backward calls, and twice."""

    scale: Any = torch.tensor(1.0)

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, loss: Tensor) -> Tensor:
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, twice(grad.new_ones(()))


def twice(one: Tensor) -> Tensor:
    return one * Helped.scale + one * Helped.scale


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    for cls in (Scaler, Helped):
        cls.scale = torch.tensor(1.0)
    torch._dynamo.reset()


def step(x: Tensor, y: Tensor) -> Tensor:
    return Scaler.apply(x * 2, (y * y).sum()) * 3


def helped(x: Tensor, y: Tensor) -> Tensor:
    return Helped.apply(x * 2, (y * y).sum()) * 3


def gradients(call: Callable[..., Tensor], late: Any, cls: Any = Scaler) -> tuple[Tensor, Tensor]:
    """The scale is 9 during the forward and ``late`` when the backward runs."""
    x, y = torch.arange(3.0, requires_grad=True), torch.ones(3, requires_grad=True)
    cls.scale = torch.tensor(9.0) if isinstance(cls.scale, Tensor) else 9.0
    out = call(x, y)
    cls.scale = late
    return torch.autograd.grad(out.sum(), (x, y))


# === Captured ================================================================================================


@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
@pytest.mark.parametrize(("function", "cls"), [(step, Scaler), (helped, Helped)])
def test_the_value_at_the_time_of_the_backward(inner: str, function: Callable[..., Tensor], cls: Any) -> None:
    call = compiled(function, inner, fullgraph=True)
    for late in (torch.tensor(2.0), torch.tensor(5.0), torch.tensor([7.0]), torch.tensor(-1.0), 3.5):
        cls.scale = torch.tensor(0.0)
        got, want = gradients(call, late, cls), gradients(function, late, cls)
        assert all(torch.equal(a, b) for a, b in zip(got, want))
        assert want[1][0] == 2 * late * (2 if cls is Helped else 1)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def beside_other_loops(x: Tensor, y: Tensor, cu_seqlens: Tensor) -> Tensor:
    """As many depths as the row has boundaries: looked at as a loop over documents, and found to be none."""
    for _ in range(2):
        x = Scaler.apply(x, (y * y).sum() + cu_seqlens[-1])
    return x * 3


def beside_a_refused_loop(x: Tensor, y: Tensor, cu_seqlens: Tensor) -> Tensor:
    carried = torch.zeros(())
    for i in range(cu_seqlens.shape[0] - 1):
        carried = carried * 0.5 + i
    return Scaler.apply(x * 2, (y * y).sum()) * 3 + carried


@pytest.mark.parametrize("function", [beside_other_loops, beside_a_refused_loop])
def test_where_loops_are_left_to_stock_torch(function: Callable[..., Tensor]) -> None:
    """The frame is traced again without its loops; the reads in its backward are still there."""
    call = compiled(function, "aot_eager", fullgraph=True)
    for cu in (torch.tensor([0, 1, 1, 3]), torch.tensor([0, 3])):
        got, want = (
            gradients(lambda x, y, way=way, cu=cu: way(x, y, cu), torch.tensor(2.0)) for way in (call, function)
        )
        assert all(torch.equal(a, b) for a, b in zip(got, want))
    assert not counters["graph_break"]


def test_the_read_is_in_the_backward() -> None:
    """A partitioner must not move it into the forward, where the old value would be saved."""
    parts: list[list[Any]] = []

    def keep(gm: fx.GraphModule, inputs: Any) -> Any:
        parts.append([node.target for node in gm.graph.nodes])
        return gm

    graphs: list[fx.GraphModule] = []

    class Keep(type(packpass.backend)):  # type: ignore[misc]
        def __call__(self, gm: fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
            graphs.append(gm)
            return aot_autograd(fw_compiler=keep, bw_compiler=keep)(gm, inputs)

    gradients(torch.compile(step, backend=Keep(), fullgraph=True), torch.tensor(2.0))
    assert len(graphs) == 1
    assert [READ in part for part in parts] == [False, True]


def test_an_incompatible_tensor_is_an_error_and_no_wrong_result() -> None:
    call = compiled(step, "aot_eager", fullgraph=True)
    gradients(call, torch.tensor(2.0))
    for wrong in (torch.tensor(2.0, dtype=torch.float64), torch.ones(3), None):
        Scaler.scale = torch.tensor(1.0)
        with pytest.raises(RuntimeError, match=r"Scaler.scale was a tensor torch.float32 \[\]"):
            gradients(call, wrong)


# === Left to stock torch =====================================================================================


class Plain(torch.autograd.Function):
    scale: Any = 1.0

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, loss: Tensor) -> Tensor:
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad.sum() * Plain.scale


def test_a_number_is_left_alone() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return Plain.apply(x * 2, (y * y).sum()) * 3

    call = compiled(function, "aot_eager")
    for late in (2.0, 5.0):
        got, want = gradients(call, late, Plain), gradients(function, late, Plain)
        assert all(torch.equal(a, b) for a, b in zip(got, want))
    assert counters["graph_break"]


def test_a_class_without_a_findable_name_is_left_alone() -> None:
    class Local(torch.autograd.Function):
        scale: Any = torch.tensor(1.0)

        @staticmethod
        def forward(ctx: Any, hidden: Tensor, loss: Tensor) -> Tensor:
            return hidden.view_as(hidden)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            return grad, grad.sum() * Local.scale

    def function(x: Tensor, y: Tensor) -> Tensor:
        return Local.apply(x * 2, (y * y).sum()) * 3

    call = compiled(function, "aot_eager")
    for late in (torch.tensor(2.0), torch.tensor(5.0)):
        got, want = gradients(call, late, Local), gradients(function, late, Local)
        assert all(torch.equal(a, b) for a, b in zip(got, want))
    assert counters["graph_break"]


def test_a_read_in_the_forward_is_left_alone() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return Scaler.apply(x * Scaler.scale, (y * y).sum()) * 3

    call = compiled(function, "aot_eager")
    for late in (torch.tensor(2.0), torch.tensor(5.0)):
        got, want = gradients(call, late), gradients(function, late)
        assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_other_backends_are_left_alone() -> None:
    compiled(step, "aot_eager", fullgraph=True)(torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(step, backend="eager", fullgraph=True)(
            torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        )


def test_opcheck() -> None:
    torch.library.opcheck(READ, (torch.ones(2), Scaler.__module__, "Scaler", "scale", [], torch.float32))
