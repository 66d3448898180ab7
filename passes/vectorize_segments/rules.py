"""The rule table: what each op of a loop body does to abstract values.

A rule is a small function ``rule(machine, node) -> value``, registered under the op's canonical name; adding an op is
adding a rule and its test. What has no rule is refused by name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from packpass._compat import native_pad
from packpass.capture import markers
from passes.vectorize_segments.machine import (
    OPAQUE,
    PER_DOCUMENT,
    Machine,
    Refused,
    Rule,
    Segment,
    example,
    frozen_args,
)
from passes.vectorize_segments.terms import Affine, Apply, Guard, Outside, map_args

RULES: dict[str, Rule] = {}
TOKENWISE: dict[str, Rule] = {}
"""Rules, asked first, for ops that leave the packed dimension alone; ``NotImplemented`` where they do not: then the
rule in `RULES` decides. Both tables may know one op: a sum over features is here, one over the document is there."""

DOCUMENTS: dict[str, Rule] = {}
"""Rules for ops on values that documents have one of each (`PER_DOCUMENT`); no other rule sees such a value."""

# Ops that treat every slot alike: on a segment they are the same op on the whole row.
ELEMENTWISE = frozenset(
    """
    add sub subtract rsub mul multiply div divide true_divide floor_divide truediv floordiv remainder mod fmod
    pow float_power neg negative pos positive abs absolute exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square
    sin cos tan asin acos atan sinh cosh tanh atan2 sigmoid erf erfc floor ceil round trunc frac sign sgn
    reciprocal clamp clip clamp_min clamp_max minimum maximum fmin fmax where eq ne lt le gt ge equal_to
    logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not and_ or_ xor
    invert lshift rshift masked_fill lerp addcmul addcdiv nan_to_num isnan isinf isfinite relu gelu silu
    leaky_relu elu selu celu softplus hardtanh relu6 mish logsigmoid hardswish hardsigmoid tanhshrink softsign
    threshold heaviside copysign hypot logaddexp logaddexp2 hardshrink softshrink sinc asinh acosh atanh erfinv lgamma
    digamma xlogy deg2rad rad2deg greater less greater_equal less_equal not_equal isclose conj conj_physical angle
    real imag isposinf isneginf nextafter ldexp clone detach to type type_as float double half bfloat16 long
    int short bool zeros_like ones_like full_like empty_like contiguous alias logit signbit cpu cuda
    """.split()  # noqa: SIM905
)
# Elementwise ops whose result may be the input itself.
_MAYBE_ALIAS = frozenset(
    """
    to type type_as float double half bfloat16 long int short bool detach alias contiguous positive pos cpu cuda
    real imag conj
    """.split()  # noqa: SIM905
)
_PRESERVING = frozenset({"clone", "detach", "contiguous", "alias", "to", "long", "cpu", "cuda"})
_LINEAR = frozenset(
    """
    add sub subtract rsub neg negative clone to type type_as float double half bfloat16 contiguous alias detach
    positive pos where masked_fill
    """.split()  # noqa: SIM905
)
# Integer division by the 0 of a slot that nobody asked for raises.
_DIVIDING = frozenset({"floor_divide", "floordiv", "remainder", "mod", "fmod", "div", "divide", "lshift", "rshift"})
_KEYWORDS = frozenset(
    """
    alpha value min max rounding_mode approximate negative_slope dtype beta threshold other input weight end
    exponent nan posinf neginf memory_format non_blocking copy device decimals fill_value min_val max_val mask
    layout requires_grad tensor1 tensor2 values self lambd dim dims keepdim p ord eps normalized_shape bias unbiased
    correction descending stable largest sorted k repeats equal_nan rtol atol right out_int32 size start
    step
    """.split()  # noqa: SIM905
)


_STRUCTURAL = frozenset(
    """
    roll flip cat concat concatenate narrow select unsqueeze squeeze transpose permute movedim reshape flatten
    pad arange zeros ones full empty swapaxes
    """.split()  # noqa: SIM905
)


# Ops that reduce, scan, mix or reorder along the dimensions they name.
_DIMENSIONAL = frozenset(
    """
    sum mean prod max min amax amin aminmax argmax argmin var std var_mean std_mean norm any all count_nonzero
    logsumexp nansum nanmean median softmax log_softmax softmin cumsum cumprod cummax cummin logcumsumexp sort argsort
    topk gather take_along_dim index_select matmul mm bmm mv addmm baddbmm einsum outer ger inner tensordot linear
    bilinear embedding embedding_bag layer_norm rms_norm group_norm instance_norm batch_norm normalize one_hot glu
    chunk split tensor_split unbind stack hstack vstack dstack column_stack expand expand_as repeat
    repeat_interleave tile unflatten broadcast_to bucketize searchsorted cross_entropy nll_loss mse_loss l1_loss
    smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div gaussian_nll_loss
    poisson_nll_loss soft_margin_loss cosine_similarity pairwise_distance cdist dropout dropout1d dropout2d
    alpha_dropout feature_alpha_dropout interpolate scaled_dot_product_attention tril triu diff masked_select nonzero
    polar view_as_complex view_as_real complex nanmedian renorm adaptive_avg_pool1d avg_pool1d max_pool1d
    conv1d bincount unique histc scatter scatter_add index_add index_copy index_fill index_put take diagonal diag
    trace kron cross dot vdot rot90 unfold trapezoid t moveaxis
    """.split()  # noqa: SIM905
)


def _names() -> dict[Any, str]:
    """Function object -> canonical name."""
    table: dict[Any, str] = {}
    names = ELEMENTWISE | _STRUCTURAL | _DIMENSIONAL
    for name in names | {f"{n}_" for n in names}:
        for module in (F, torch):
            fn = getattr(module, name, None)
            if callable(fn):
                table[fn] = name
    for name in ELEMENTWISE:
        fn = getattr(operator, name, None)
        if callable(fn):
            table[fn] = name
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
        table[getattr(operator, f"i{name}")] = {"and": "and__", "or": "or__"}.get(name, f"{name}_")
    table.update({operator.getitem: "getitem", operator.setitem: "setitem", markers.SPLIT_GET: "split_get"})
    table.update({shadow: original.__name__ for shadow, original in markers.SHADOWS.items()})
    table.update(
        {
            torch.ops.aten.sym_size.int: "size",
            torch.ops.aten._assert_scalar.default: "assert_scalar",
            torch._check: "check",
        }
    )
    table.update({torch.sym_sum: "sym_sum", torch._assert_async: "assert_async", markers.LIST_GET: "list_get"})
    table.update({torch.ops.aten.sym_storage_offset.default: "opaque", torch.ops.aten.sym_stride.int: "opaque"})
    table[native_pad()] = "pad"
    table.update({torch.linalg.vector_norm: "vector_norm", torch.linalg.norm: "linalg_norm"})
    table.update({operator.matmul: "matmul", getattr: "getattr"})
    table.update({torch.special.softmax: "softmax", torch.special.logsumexp: "logsumexp"})
    for skip in markers.LOOP_SKIP:
        table[skip] = "loop_skip"
    table[markers.LOOP_CHECK] = "loop_check"
    if hasattr(torch, "sym_int"):
        table[torch.sym_int] = "sym_int"
    return table


_NAMES = _names()
_BASE = {
    "truediv_": "truediv",
    "floordiv_": "floordiv",
    "mod_": "mod",
    "and__": "and_",
    "or__": "or_",
    "lshift_": "lshift",
    "rshift_": "rshift",
}
_OPERATORS = {
    name: getattr(operator, name) for name in ("truediv", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift")
}


def name_of(node: fx.Node) -> str | None:
    """Canonical op name of a node: ``torch.add``, ``x.add`` and ``x + y`` are all ``add``."""
    if node.op == "call_method":
        name = str(node.target)
        return {"__getitem__": "getitem", "__setitem__": "setitem", "view": "reshape", "view_as": "view_as"}.get(
            name, name
        )
    if node.op == "call_function":
        try:
            return _NAMES.get(node.target)
        except TypeError:  # not hashable
            return None
    return None


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule under canonical op names."""

    def register(fn: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = fn
        return fn

    return register


def tokenwise(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for ops that leave the packed dimension alone; see `TOKENWISE`."""

    def register(fn: Rule) -> Rule:
        for name in names:
            assert name not in TOKENWISE, name
            TOKENWISE[name] = fn
        return fn

    return register


def documents(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for ops on per-document values; see `DOCUMENTS`."""

    def register(fn: Rule) -> Rule:
        for name in names:
            assert name not in DOCUMENTS, name
            DOCUMENTS[name] = fn
        return fn

    return register


def label(node: fx.Node) -> str:
    """An op as users write it, for refusals."""
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    target: Any = node.target
    return getattr(target, "__name__", str(target))


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """A positional-or-keyword argument."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def step(machine: Machine, node: fx.Node) -> None:
    """Interpret one node of the body."""
    if node.op == "get_attr":
        machine.values[node] = machine.intern(Outside(node))
        return
    name = name_of(node)
    if any(isinstance(machine.value(a), PER_DOCUMENT) for a in node.all_input_nodes):
        machine.values[node] = DOCUMENTS["*"](machine, node)
        return
    if name in TOKENWISE:
        value = TOKENWISE[name](machine, node)
        if value is not NotImplemented:
            machine.values[node] = value
            return
    fn = RULES.get(name) if name is not None else None
    if fn is None and name is not None:
        if name in ELEMENTWISE:
            fn = elementwise
        elif name.endswith("_") and (name[:-1] in ELEMENTWISE or name in _BASE):
            fn = in_place
    if (
        fn is None
        and node.op == "call_function"
        and isinstance(example(node), (int, torch.SymInt, torch.SymBool, torch.SymFloat))
    ):
        fn = RULES["opaque"]  # size arithmetic of Dynamo's own; refused where its result is used for anything else
    if fn is None:
        raise Refused("no-rule", f"there is no rule for {label(node)} in a loop over documents", node)
    machine.values[node] = fn(machine, node)


# === Integers ================================================================================================


def _int_op(machine: Machine, node: fx.Node, name: str) -> Any:
    """Arithmetic of boundaries, lengths and indices; None if these are not integers the machine knows."""
    if node.kwargs or not 1 <= len(node.args) <= 2:
        return None
    args = [machine.affine(a) for a in node.args]
    known = [a for a in args if a is not None]
    if len(known) != len(args) or not any(isinstance(machine.value(a), Affine) for a in node.args):
        return None
    fake = example(node)
    if isinstance(fake, torch.Tensor) and (fake.dim() or fake.dtype not in (torch.int32, torch.int64)):
        return OPAQUE
    if name in ("add", "sub", "subtract") and len(known) == 2:
        return known[0].plus(known[1], 1 if name == "add" else -1)
    if name in ("mul", "multiply") and len(known) == 2:
        for a, b in (known, known[::-1]):
            if b.is_const:
                return a.times(b.const)
    if name in ("neg", "negative") and len(known) == 1:
        return known[0].times(-1)
    if name in ("pos", "positive"):
        return known[0]
    return OPAQUE


@rule("sym_sum")
def _sym_sum(machine: Machine, node: fx.Node) -> Any:
    total = Affine()
    for arg in node.args[0]:  # type: ignore[union-attr]
        value = machine.affine(arg)
        if value is None:
            return OPAQUE
        total = total.plus(value)
    return total


@rule("item", "sym_int", "tolist", "__int__", "__index__")
def _item(machine: Machine, node: fx.Node) -> Any:
    value = machine.value(node.args[0])
    if isinstance(value, Affine):
        return value
    if isinstance(value, Outside):
        return OPAQUE
    raise Refused("host-read", "a tensor value is read on the host inside the loop", node)


@rule("assert_scalar")
def _assert_scalar(machine: Machine, node: fx.Node) -> Any:
    """Dynamo's own bounds and size assertions: what they protect no longer exists after the rewrite."""
    return OPAQUE


@rule("opaque")
def _opaque(machine: Machine, node: fx.Node) -> Any:
    if any(isinstance(machine.value(a), Affine) for a in node.all_input_nodes):
        return DOCUMENTS["*"](machine, node)  # a root of the length, say
    return OPAQUE


# === Elementwise =============================================================================================


def _segments(machine: Machine, node: fx.Node) -> list[Segment]:
    found = []
    for arg in node.all_input_nodes:
        value = machine.value(arg)
        if isinstance(value, Segment):
            found.append(value)
    return found


def arguments(
    machine: Machine, node: fx.Node, convert: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
    """Arguments with every FX node replaced by ``convert(value)``, ready to be interned."""

    def leaf(arg: Any) -> Any:
        return convert(machine.value(arg)) if isinstance(arg, fx.Node) else arg

    args = frozen_args(map_args(node.args, leaf))
    kwargs = tuple(sorted((k, frozen_args(map_args(v, leaf))) for k, v in node.kwargs.items()))
    return args, kwargs


def elementwise(machine: Machine, node: fx.Node) -> Any:
    """An op that treats every slot alike, on segments with the same slots."""
    name = name_of(node) or ""
    integer = _int_op(machine, node, name)
    if integer is not None and integer is not OPAQUE:
        return integer
    known_number = any(isinstance(machine.value(a), Affine) for a in node.all_input_nodes)
    if integer is not None and not (known_number and not isinstance(example(node), torch.SymBool)):
        return integer
    if known_number and not isinstance(example(node), torch.Tensor):
        return DOCUMENTS["*"](machine, node)
    if any(machine.value(a) is OPAQUE for a in node.all_input_nodes) and not isinstance(example(node), torch.Tensor):
        return OPAQUE
    if not isinstance(example(node), torch.Tensor):
        return OPAQUE
    if name in _PRESERVING and isinstance(node.args[0], fx.Node):
        value = machine.value(node.args[0])
        if isinstance(value, Affine) and example(node).dtype in (torch.int64, example(node.args[0]).dtype):
            return value
    if known_number:
        return DOCUMENTS["*"](machine, node)
    segments = _segments(machine, node)
    if not segments:
        return outside_call(machine, node)
    return _apply(machine, node, segments, node.target, node.op == "call_method", alias=name in _MAYBE_ALIAS)


def outside_call(machine: Machine, node: fx.Node) -> Any:
    """An op on outside tensors only: the same for every document."""

    def convert(value: Any) -> Any:
        if isinstance(value, Outside):
            return value
        raise Refused(
            "index-as-number", f"{label(node)} uses a boundary, a length or the document's number as a value", node
        )

    _only_known_keywords(node)
    args, kwargs = arguments(machine, node, convert)
    return machine.computed((node.target, node.op == "call_method", args, kwargs), example(node))


def _only_known_keywords(node: fx.Node) -> None:
    unknown = set(node.kwargs) - _KEYWORDS
    if unknown or node.kwargs.get("inplace"):
        raise Refused("no-rule", f"{label(node)} with {', '.join(sorted(unknown)) or 'inplace=True'} has no rule", node)


def _linear(machine: Machine, node: fx.Node) -> bool:
    """Is the gradient of a slot that nobody reads sure to be 0, whatever that slot holds?"""
    name = (name_of(node) or "").rstrip("_")
    if name in ("mul", "multiply", "div", "truediv", "divide", "true_divide"):
        # by a constant; a product of two tensors is 0 * inf in slots that hold garbage
        return isinstance(node.args[0], fx.Node) and not isinstance(node.args[1], fx.Node)
    return name in _LINEAR


def _apply(
    machine: Machine, node: fx.Node, segments: list[Segment], target: Any, method: bool, alias: bool = False
) -> Segment:
    _only_known_keywords(node)
    first = segments[0]
    for other in segments[1:]:
        if other.dim != first.dim:
            raise Refused("dim-mismatch", f"{label(node)} combines segments along different dimensions", node)

    name = (name_of(node) or "").rstrip("_")
    guarded = (example(node).requires_grad and not _linear(machine, node)) or name in _DIVIDING

    def convert(value: Any) -> Any:
        if isinstance(value, Segment):
            term = machine.aligned(value, first.window, node)
            return machine.intern(Guard(term, first.window, term.dim)) if guarded else term
        if isinstance(value, Outside):
            machine.broadcasts(value, first.dim, node)
            return value
        raise Refused(
            "index-as-number", f"{label(node)} uses a boundary, a length or the document's number as a value", node
        )

    args, kwargs = arguments(machine, node, convert)
    term = Apply(target, method, args, kwargs, first.dim)
    rank = example(node).dim()
    if alias and len(segments) == 1:
        source = next(a for a in node.all_input_nodes if isinstance(machine.value(a), Segment))
        if example(source).dtype == example(node).dtype:
            return machine.view(term, rank, first)
    return machine.fresh(term, rank, first.window, exact=all(s.store.exact for s in segments))


def in_place(machine: Machine, node: fx.Node) -> Any:
    """``x.op_(...)`` and ``x op= y``: the functional op, then an assignment to what ``x`` views."""
    name = name_of(node) or ""
    target = machine.value(node.args[0])
    if not isinstance(target, Segment):
        if isinstance(target, Affine) or target is OPAQUE:
            integer = _int_op(machine, node, _BASE.get(name, name[:-1]))
            if integer is not None and not isinstance(example(node), torch.Tensor):
                return integer
        raise Refused("outer-tensor-write", f"{label(node)} changes a tensor from outside the loop", node)
    if any(isinstance(machine.value(a), Affine) for a in node.all_input_nodes):
        return DOCUMENTS["*"](machine, node)
    base = _BASE.get(name, name[:-1])
    fn: Any = _OPERATORS.get(base) or getattr(torch, base, None) or getattr(F, base, None)
    method = False
    if fn is None:
        fn, method = base, True
    value = _apply(machine, node, _segments(machine, node), fn, method)
    if value.window != target.window:
        raise Refused("length-mismatch", f"{label(node)} combines parts of a document that do not match", node)
    machine.write(target, target.window, value, node)
    return target
