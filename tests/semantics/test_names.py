"""Names go by identity: what torch function a callable is, never what it is called."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from packpass.semantics.names import base_name, is_in_place, name_of_target, op_name

NAMES = {
    "abs": (torch.abs, torch.absolute, operator.abs, abs, torch.ops.aten.abs.default),
    "add": (torch.add, operator.add, torch.ops.aten.add.Tensor, torch.ops.aten.add, torch.ops.prims.add.default),
    "add_": (operator.iadd, torch.ops.aten.add_.Tensor),
    "bitwise_and": (torch.bitwise_and, operator.and_, torch.ops.aten.__and__.Tensor),
    "bitwise_left_shift": (torch.bitwise_left_shift, operator.lshift),
    "bitwise_not": (torch.bitwise_not, operator.invert, operator.inv),
    "bitwise_or_": (operator.ior,),
    "bitwise_xor": (torch.bitwise_xor, operator.xor),
    "cat": (torch.cat, torch.concat, torch.concatenate, torch.ops.aten.cat.default),
    "clamp": (torch.clamp, torch.clip),
    "cross_entropy": (F.cross_entropy, torch.ops.aten.cross_entropy_loss.default),
    "div": (torch.div, torch.divide, torch.true_divide, operator.truediv),
    "einsum": (torch.einsum,),
    "embedding": (F.embedding, torch.embedding, torch.ops.aten.embedding.default),
    "floor_divide": (torch.floor_divide, operator.floordiv),
    "floor_divide_": (operator.ifloordiv,),
    "gelu": (F.gelu, torch.ops.aten.gelu),
    "getattr": (getattr,),
    "getitem": (operator.getitem,),
    "gt": (torch.gt, torch.greater, operator.gt),
    "im2col": (F.unfold, torch.ops.aten.im2col.default),
    "linalg_vector_norm": (torch.linalg.vector_norm,),
    "log_sigmoid": (F.logsigmoid, torch.ops.aten.log_sigmoid.default),
    "lgamma": (torch.lgamma, torch.special.gammaln),
    "logsumexp": (torch.logsumexp, torch.special.logsumexp),
    "masked.sum": (torch.masked.sum,),
    "math.sqrt": (__import__("math").sqrt,),
    "matmul": (torch.matmul, operator.matmul, torch.linalg.matmul),
    "max_pool1d": (F.max_pool1d,),
    "maximum": (torch.maximum, torch.sym_max, torch.ops.aten.maximum.default),
    "mm": (torch.mm, torch.spmm, torch.ops.aten.mm.default),
    "movedim": (torch.movedim, torch.moveaxis),
    "mul": (torch.mul, torch.multiply, operator.mul),
    "ne": (torch.ne, torch.not_equal, operator.ne),
    "outer": (torch.outer, torch.ger),
    "pad": (F.pad, torch.ops.aten.pad.default, torch.ops.aten.constant_pad_nd.default),
    "positive": (torch.positive, operator.pos),
    "pow": (torch.pow, operator.pow, pow),
    "relu": (torch.relu, F.relu, torch.ops.aten.relu.default),
    "relu_": (torch.relu_, F.relu_),
    "remainder": (torch.remainder, operator.mod),
    "setitem": (operator.setitem,),
    "sigmoid": (torch.sigmoid, F.sigmoid, torch.special.expit),
    "softmax": (torch.softmax, F.softmax, torch.special.softmax, torch.ops.aten._softmax.default),
    "sub": (torch.sub, torch.subtract, operator.sub),
    "sym_sum": (torch.sym_sum,),
    "torch._C._set_grad_enabled": (torch._C._set_grad_enabled,),
    "transpose": (torch.transpose, torch.swapaxes, torch.swapdims),
    "trunc": (torch.trunc, torch.fix),
}
METHODS = {
    **{"__getitem__": "getitem", "__setitem__": "setitem", "__iand__": "bitwise_and_", "__invert__": "bitwise_not"},
    **{"__isub__": "sub_", "__itruediv__": "div_", "__ior__": "bitwise_or_", "__rsub__": "rsub", "greater": "gt"},
    **{"absolute_": "abs_", "swapaxes": "transpose", "view": "view", "unfold": "unfold", "no_such_method": ""},
}


@pytest.mark.parametrize("name", NAMES)
def test_one_name_for_every_spelling(name: str) -> None:
    assert {name_of_target(target) for target in NAMES[name]} == {name}


@pytest.mark.parametrize("method", METHODS)
def test_methods(method: str) -> None:
    graph = fx.Graph()
    assert op_name(graph.call_method(method, (graph.placeholder("x"),))) == METHODS[method]


def clone(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@functools.wraps(torch.nn.functional.softmax)
def softmax(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def called(name: str, module: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of the user's, or of another package."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 5

    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    return function


OTHERS = [
    *(called(name, "torch") for name in ("clone", "zeros", "getitem")),
    *(called("zeros", module) for module in ("torchtune.modules", "mathutils")),
    *(clone, softmax, clone.__call__),
]


@pytest.mark.parametrize("target", OTHERS)
def test_a_function_of_the_users_has_no_name(target: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert name_of_target(target) == ""


def test_what_calls_itself_unhashable_has_no_name() -> None:
    class Strange:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None: ...

    assert name_of_target(Strange()) == ""


def test_a_method_of_something_else_is_not_a_tensors() -> None:
    graph = fx.Graph()
    size = graph.placeholder("size")
    size.meta["example_value"] = torch.Size([2])
    assert op_name(graph.call_method("numel", (size,))) == "Size.numel"


def test_operators_of_others_keep_their_namespace() -> None:
    """Dynamo puts down the packet of overloads for ``torch.ops.x.clone(y)``; its own name is just ``clone``."""
    library = torch.library.Library("packpass_test_names", "DEF")
    try:
        library.define("clone(Tensor x) -> Tensor")
        packet = torch.ops.packpass_test_names.clone
        assert name_of_target(packet) == name_of_target(packet.default) == "packpass_test_names::clone"
    finally:
        library._destroy()


def test_private_functions_of_torch_have_the_name_of_their_place() -> None:
    entered = torch.amp.autocast_mode._enter_autocast
    assert name_of_target(entered) == "torch.amp.autocast_mode._enter_autocast"


def test_ops_of_other_namespaces_keep_theirs() -> None:
    import packpass.ops  # noqa: F401  (registers them)

    assert name_of_target(torch.ops.packpass.packed_roll.default) == "packpass::packed_roll"


def test_higher_order_operators() -> None:
    assert name_of_target(torch.ops.higher_order.flex_attention) == "higher_order::flex_attention"


def test_marks_of_in_place_forms() -> None:
    assert is_in_place("add_") and base_name("add_") == "add"
    assert not is_in_place("__getstate__") and not is_in_place("add") and base_name("add") == "add"
