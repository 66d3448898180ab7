"""``packpass.compile`` in every position where a decorator can stand."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import packpass
from packpass.engine.compile import compile_afresh, fresh_copy, is_compiled, uncompiled
from tests.surface.models import (
    EAGER,
    CompiledScale,
    Inherits,
    MethodCompiled,
    NotAModule,
    Scale,
    ScaleAndShift,
    double,
)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def graphs_of(call: Any, *args: Any) -> tuple[Any, int]:
    """The result of a call and the number of graphs packpass was handed for it."""
    counters = torch._dynamo.utils.counters["packpass"]
    before = counters["graphs"]
    return call(*args), counters["graphs"] - before


def test_a_function_goes_through_packpass() -> None:
    result, graphs = graphs_of(packpass.compile(double, options=EAGER), torch.ones(2))
    assert torch.equal(result, torch.full((2,), 2.0))
    assert graphs == 1


def test_as_a_decorator_with_and_without_keywords() -> None:
    @packpass.compile(options=EAGER, fullgraph=True)
    def triple(x: torch.Tensor) -> torch.Tensor:
        """Threefold."""
        return x * 3

    assert triple.__name__ == "triple"
    assert triple.__doc__ == "Threefold."
    assert graphs_of(triple, torch.ones(1)) == (torch.tensor([3.0]), 1)
    assert is_compiled(packpass.compile(double))
    assert is_compiled(packpass.compile()(double))


def test_fullgraph_is_passed_on() -> None:
    @packpass.compile(options=EAGER, fullgraph=True)
    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    with pytest.raises(torch._dynamo.exc.Unsupported):
        broken(torch.ones(1))


def test_a_method_binds_to_its_instance() -> None:
    result, graphs = graphs_of(MethodCompiled(), torch.zeros(1))
    assert result == 10
    assert graphs == 1


def test_static_and_class_methods() -> None:
    class Holder:
        base = 7

        @packpass.compile(options=EAGER)
        @staticmethod
        def plain(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        @packpass.compile(options=EAGER)
        @classmethod
        def of_class(cls, x: torch.Tensor) -> torch.Tensor:
            return x + cls.base

    assert graphs_of(Holder.plain, torch.zeros(1)) == (torch.tensor([1.0]), 1)
    assert graphs_of(Holder().of_class, torch.zeros(1)) == (torch.tensor([7.0]), 1)


def test_a_module_class_stays_itself() -> None:
    model = CompiledScale()
    assert isinstance(CompiledScale, type)
    assert type(model) is CompiledScale
    assert CompiledScale.__name__ == "CompiledScale"
    assert CompiledScale.__module__ == "tests.surface.models"
    assert CompiledScale.forward.__doc__ == "Scales."
    assert list(model.state_dict()) == ["factor"]
    result, graphs = graphs_of(model, torch.ones(1))
    assert result == 6  # twice: the body saw that it was being compiled
    assert graphs == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_of_a_compiled_class_s_instance_are_compiled(copied: Any) -> None:
    model = CompiledScale(2.0)
    model(torch.ones(1))
    twin = copied(model)
    assert type(twin) is CompiledScale
    assert twin(torch.ones(1)) == 4


def test_subclasses_of_a_compiled_class() -> None:
    assert Inherits()(torch.ones(1)) == 6
    # the subclass's own forward runs eagerly (+1), what it calls is compiled (3 * 2)
    assert ScaleAndShift()(torch.ones(1)) == 7
    assert isinstance(ScaleAndShift(), CompiledScale)


def test_a_module_instance_gives_what_torch_compile_gives() -> None:
    model = Scale()
    compiled = packpass.compile(model, options=EAGER)
    assert isinstance(compiled, type(torch.compile(model, backend="eager")))
    assert compiled(torch.ones(1)) == 3


def test_gradients_flow() -> None:
    model = packpass.compile(Scale(), options={"packpass.inner_backend": "aot_eager"})
    x = torch.ones(2, requires_grad=True)
    model(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 3.0))
    assert model.factor.grad == 2


def test_backend_is_refused_with_a_reason() -> None:
    with pytest.raises(TypeError, match=r"always uses packpass.backend, so it takes no backend= \(got 'eager'\)"):
        packpass.compile(double, backend="eager")
    with pytest.raises(TypeError, match="takes no backend="):
        packpass.compile(backend="inductor")


def test_bad_options_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="unknown option 'packpass.verfy'"):
        packpass.compile(double, options={"packpass.verfy": True})


def test_unknown_keywords_are_torch_compile_s_to_refuse() -> None:
    with pytest.raises(TypeError, match="fullgrph"):
        packpass.compile(double, fullgrph=True)


def test_the_caller_s_options_are_not_changed() -> None:
    options = {**EAGER, "guard_filter_fn": lambda guards: [True for _ in guards]}
    before = dict(options)
    packpass.compile(double, options=options)
    assert options == before


@pytest.mark.parametrize("wrong", [3, "model", NotAModule, nn.Module])
def test_what_cannot_be_compiled_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"packpass.compile"):
        packpass.compile(wrong)


def test_uncompiled_finds_what_was_compiled() -> None:
    model = Scale()
    assert uncompiled(torch.compile(model, backend="eager")) is model
    assert uncompiled(torch.compile(double, backend="eager")) is double
    assert uncompiled(double) is double
    empty = nn.Sequential()  # falsy
    assert uncompiled(torch.compile(empty, backend="eager")) is empty


def give_up(x: torch.Tensor, cu: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out += cu[i].item()
    return out


def graphs_seen(model: Any) -> int:
    """How many graphs a fresh backend is handed when ``model`` is compiled afresh and called."""
    graphs: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compile_afresh(model, backend, {})(torch.zeros(4), torch.tensor([0, 2, 4]))
    return len(graphs)


def test_compiling_afresh_is_not_spoiled_by_a_compiler_that_gave_up() -> None:
    class Module(nn.Module):
        def forward(self, x: torch.Tensor, cu: torch.Tensor) -> torch.Tensor:
            out = x.clone()
            for i in range(len(cu) - 1):
                out += cu[i].item()
            return out

    model = Module()
    arguments = torch.zeros(4), torch.tensor([0, 2, 4])
    torch.compile(give_up, backend="eager")(*arguments)
    torch.compile(model, backend="eager")(*arguments)
    torch.compile(model.forward, backend="eager")(*arguments)
    assert graphs_seen(give_up) == 1
    assert graphs_seen(model) == 1
    assert graphs_seen(model.forward) == 1


def test_a_fresh_copy_calls_alike() -> None:
    def make(offset: int) -> Any:
        def add(x: int, *, times: int = 2) -> int:
            return x * times + offset

        return add

    add = make(5)
    twin = fresh_copy(add)
    assert twin.__code__ is not add.__code__
    assert (twin(1), twin(1, times=3), twin.__qualname__) == (7, 8, add.__qualname__)


def test_a_fresh_copy_of_a_module_keeps_its_hooks_and_its_own_forward() -> None:
    model = Scale()
    model.register_forward_hook(lambda module, args, result: result + 1)
    assert fresh_copy(model)(torch.ones(1)) == 4
    replaced = Scale()
    replaced.forward = lambda x: x - 1  # type: ignore[method-assign]
    assert fresh_copy(replaced)(torch.ones(1)) == 0
    assert fresh_copy(CompiledScale())(torch.ones(1)) == 3  # the class's forward, uncompiled


def test_compiling_afresh_leaves_the_user_s_compiled_code_in_place() -> None:
    compiled = torch.compile(double, backend="eager")
    stats = torch._dynamo.utils.counters["stats"]
    compiled(torch.ones(2))
    for _ in range(10):
        compile_afresh(double, packpass.engine.backend.Backend(), {"options": EAGER})(torch.ones(2))
    before = stats["unique_graphs"]
    compiled(torch.ones(2))
    assert stats["unique_graphs"] == before  # still cached
    compiled(torch.ones(2, 2))
    assert stats["unique_graphs"] == before + 1  # and still allowed to compile


def test_the_backend_s_name_gives_the_same_object() -> None:
    assert torch._dynamo.lookup_backend("packpass") is packpass.backend
    result, graphs = graphs_of(torch.compile(double, backend="packpass", options=EAGER), torch.ones(1))
    assert (result.item(), graphs) == (2.0, 1)
