"""Canonical names of the operations in a graph: ``torch.add``, ``x.add``, ``x + y``, ``aten.add.Tensor`` are ``add``.

A name is given by *identity*: a function has the name of the torch function it is, whatever ``__name__`` says, so a
user's function that happens to be called ``clone`` has none. Names are those of aten (``linalg_vector_norm``,
``bitwise_and``), with a trailing underscore for in-place forms, and one name where torch has several for one thing.
What is not a function on tensors says so: ``math.sqrt``, ``builtins.abs``, ``packpass::packed_roll``,
``higher_order::wrap``, ``Size.numel``.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
import sys
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import fx

from packpass._compat import native_pad

AUTOGRAD_FUNCTION = "higher_order::autograd_function_apply"
"""Name of the call of an ``autograd.Function``."""

_OPERATORS = {
    **{name: name for name in ("add", "sub", "mul", "pow", "matmul", "neg", "abs", "eq", "ne", "lt", "le", "gt", "ge")},
    **{name: name for name in ("getitem", "setitem", "delitem")},
    **{"pos": "positive", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "xor": "bitwise_xor"},
    **{"and_": "bitwise_and", "or_": "bitwise_or", "invert": "bitwise_not", "inv": "bitwise_not"},
    **{"lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift", "index": "index_of", "not_": "not"},
    **{"is_": "is", "is_not": "is_not", "contains": "contains", "truth": "truth"},
}
"""Python's operators, by their name in ``operator``."""

_SAME = {
    # Spellings of torch's own for one operation; what differs in an argument's default is not here.
    **{"absolute": "abs", "negative": "neg", "subtract": "sub", "multiply": "mul"},
    **{"divide": "div", "true_divide": "div", "greater": "gt", "less": "lt", "greater_equal": "ge"},
    **{"less_equal": "le", "not_equal": "ne", "clip": "clamp", "fix": "trunc", "concat": "cat", "concatenate": "cat"},
    **{"swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim", "row_stack": "vstack", "ger": "outer"},
    **{"arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan"},
    **{"arctan2": "atan2", "arctanh": "atanh", "logsigmoid": "log_sigmoid", "constant_pad_nd": "pad"},
    **{
        "cross_entropy_loss": "cross_entropy",
        "_view": "view",
        "_assert_async": "assert_async",
        "bitwise_invert": "bitwise_not",
    },
    **{"special_expit": "sigmoid", "special_softmax": "softmax", "special_log_softmax": "log_softmax"},
    **{"special_logsumexp": "logsumexp", "special_exp2": "exp2", "special_expm1": "expm1", "special_erf": "erf"},
    **{"special_erfc": "erfc", "special_erfinv": "erfinv", "special_gammaln": "lgamma", "special_psi": "digamma"},
    **{"special_digamma": "digamma", "special_gammainc": "igamma", "special_gammaincc": "igammac", "special_i0": "i0"},
    **{"special_log1p": "log1p", "special_logit": "logit", "special_multigammaln": "mvlgamma"},
    **{"special_polygamma": "polygamma", "special_round": "round", "special_sinc": "sinc", "special_xlogy": "xlogy"},
    **{"linalg_matmul": "matmul", "__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor"},
    **{"__lshift__": "bitwise_left_shift", "__rshift__": "bitwise_right_shift"},
    **{"dsmm": "mm", "spmm": "mm", "hsmm": "hspmm", "saddmm": "sspaddmm"},
    **{"sym_max": "maximum", "sym_min": "minimum", "sym_sqrt": "sqrt"},
    **{"_softmax": "softmax", "_log_softmax": "log_softmax", "_unsafe_view": "reshape", "convert_element_type": "to"},
}
_MODULES = (
    (torch, ""),
    (torch.nn.functional, ""),
    (torch.special, "special_"),
    (torch.linalg, "linalg_"),
    (torch.fft, "fft_"),
    (torch.masked, "masked."),
    (math, "math."),
    (builtins, "builtins."),
)
_OTHER_THINGS = {"unfold": "im2col", "fold": "col2im", "upsample": "interpolate"}
"""``torch.nn.functional`` calls by these names what is another operation elsewhere."""


def _one_name(name: str) -> str:
    """The one name of an operation that torch has several names for, in-place forms included."""
    if name.endswith("_") and not name.endswith("__"):
        return f"{_SAME.get(name[:-1], name[:-1])}_"
    return _SAME.get(name, name)


@functools.cache
def _functions() -> dict[Any, str]:
    """Function object -> name, for every function of torch's public modules, Python's operators, numbers."""
    table: dict[Any, str] = {native_pad(): "pad"}
    table.update({abs: "abs", pow: "pow", getattr: "getattr"})  # these take tensors
    for ours, name in _OPERATORS.items():
        table[getattr(operator, ours)] = name
    for ours, plain in _OPERATORS.items():
        in_place = getattr(operator, f"i{ours.removesuffix('_')}", None)  # there is no setitem in place, and so on
        if in_place is not None:
            table[in_place] = f"{plain}_"
    for name, other in _OTHER_THINGS.items():
        table[getattr(torch.nn.functional, name)] = other
    for module, prefix in _MODULES:
        for name, value in sorted(vars(module).items(), key=lambda item: item[0].startswith("_")):
            if callable(value) and not isinstance(value, type) and _hashable(value):
                table.setdefault(value, _one_name(f"{prefix}{name}"))
    return table


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@functools.cache
def _method(name: str) -> str:
    """The name of a method of tensors; "" if tensors have none of that name."""
    if not hasattr(torch.Tensor, name):
        return ""
    if name.startswith("__") and name.endswith("__"):
        plain = name[2:-2]
        if plain in _OPERATORS or f"{plain}_" in _OPERATORS:
            return _OPERATORS.get(plain) or _OPERATORS[f"{plain}_"]
        inplace = plain[1:]
        if plain.startswith("i") and (inplace in _OPERATORS or f"{inplace}_" in _OPERATORS):
            return f"{_OPERATORS.get(inplace) or _OPERATORS[f'{inplace}_']}_"
        return {"rsub": "rsub", "radd": "add", "rmul": "mul"}.get(plain, name)
    return _one_name(name)


def name_of_target(target: Any) -> str:
    """The name of a function, an overload or a method of tensors; "" for what is not torch's, Python's, or registered
    with torch."""
    try:
        return _name_of(target)
    except TypeError:
        if _hashable(target):
            raise
        return ""


@functools.lru_cache(4096)
def _name_of(target: Any) -> str:
    """The same, remembered: every pass asks it of every node."""
    if isinstance(target, str):
        return _method(target)
    if isinstance(target, torch._ops.OpOverload):
        space, _, name = target._schema.name.partition("::")
        return _one_name(name) if space in ("aten", "prims") else f"{space}::{name}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        space, _, name = str(target._qualified_op_name).partition("::")
        return _one_name(name) if space in ("aten", "prims") else f"{space}::{name}"
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order::{target.name()}"
    if not callable(target):
        return ""
    known = _functions().get(target)
    return known if known is not None else _in_its_own_module(target)


def _in_its_own_module(target: Any) -> str:
    """``torch.amp.autocast_mode._enter_autocast`` for a function that this module of torch's really contains."""
    home, name = getattr(target, "__module__", None), getattr(target, "__name__", None)
    if not isinstance(home, str) or not isinstance(name, str) or home.partition(".")[0] != "torch":
        return ""
    if vars(sys.modules.get(home, object)).get(name) is not target:
        return ""
    # Dynamo writes torch._refs.tensor for a tensor that is made of sizes.
    return _one_name(name) if home == "torch._refs" else f"{home}.{name}"


def op_name(node: fx.Node) -> str:
    """The name of the operation that a node calls; "" for anything but a call, and for functions of the user's."""
    if node.op == "call_function":
        return name_of_target(node.target)
    if node.op != "call_method":
        return ""
    receiver = node.args[0] if node.args else None
    value = receiver.meta.get("example_value") if isinstance(receiver, fx.Node) else receiver
    if value is not None and not isinstance(value, torch.Tensor):
        return f"{type(value).__name__}.{node.target}"
    return name_of_target(node.target)


def targets_of(gm: fx.GraphModule) -> Collection[Any]:
    """Every function that a graph and the graphs in it call, once: a quick look asks these few, not every node."""
    graphs = [m.graph for m in gm.modules() if isinstance(m, fx.GraphModule)]
    targets = [node.target for graph in graphs for node in graph.nodes if node.op == "call_function"]
    try:
        return set(targets)
    except TypeError:  # one of them cannot be hashed: no function of torch's
        return targets


def base_name(name: str) -> str:
    """The name without the mark of an in-place form: ``add`` of ``add_``."""
    return name[:-1] if is_in_place(name) else name


def is_in_place(name: str) -> bool:
    """Does a name say that the operation writes its first operand?"""
    return name.endswith("_") and not name.endswith("__")


def all_names() -> Iterator[str]:
    """Every name that a torch function can have (for tests and tables; in no order)."""
    yield from set(_functions().values())
