"""Names of ops in loop bodies, and what each name stands for: which ops are elementwise, may alias, divide ..."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from packpass import markers
from packpass._compat import native_pad
from packpass.semantics.names import op_name

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
MAYBE_ALIAS = frozenset(
    """
    to type type_as float double half bfloat16 long int short bool detach alias contiguous positive pos cpu cuda
    real imag conj
    """.split()  # noqa: SIM905
)
PRESERVING = frozenset({"clone", "detach", "contiguous", "alias", "to", "long", "cpu", "cuda"})
LINEAR = frozenset(
    """
    add sub subtract rsub neg negative clone to type type_as float double half bfloat16 contiguous alias detach
    positive pos where masked_fill
    """.split()  # noqa: SIM905
)
# Integer division by the 0 of a slot that nobody asked for raises.
DIVIDING = frozenset({"floor_divide", "floordiv", "remainder", "mod", "fmod", "div", "divide", "lshift", "rshift"})
KEYWORDS = frozenset(
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
    trace kron cross dot vdot rot90 unfold trapezoid t moveaxis msort kthvalue quantile nanquantile fill
    zero put index_reduce sum_to_size _safe_softmax
    """.split()  # noqa: SIM905
)


_KNOWN = ELEMENTWISE | _STRUCTURAL | _DIMENSIONAL | {"vector_norm", "full", "new_full", "new_zeros", "new_ones"}


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
    table[markers.SEGMENT] = "segment"
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
    table[torch.masked.logsumexp] = "masked_logsumexp"
    table.update({torch.special.softmax: "softmax", torch.special.logsumexp: "logsumexp"})
    for skip in markers.LOOP_SKIP:
        table[skip] = "loop_skip"
    table[markers.LOOP_CHECK] = "loop_check"
    if hasattr(torch, "sym_int"):
        table[torch.sym_int] = "sym_int"
    return table


_NAMES = _names()
BASE = {
    "truediv_": "truediv",
    "floordiv_": "floordiv",
    "mod_": "mod",
    "and__": "and_",
    "or__": "or_",
    "lshift_": "lshift",
    "rshift_": "rshift",
}
OPERATORS = {
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
            known = _NAMES.get(node.target)
        except TypeError:  # not hashable
            return None
        return known if known is not None else _of_aten(node.target)
    return None


_ATEN = {"linalg_vector_norm": "vector_norm", "bitwise_left_shift": "lshift", "bitwise_right_shift": "rshift"}
_OTHER_ARGUMENTS = frozenset(
    """
    mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss kl_div binary_cross_entropy
    binary_cross_entropy_with_logits cross_entropy nll_loss embedding embedding_bag dropout pad normalize
    layer_norm rms_norm group_norm instance_norm batch_norm scaled_dot_product_attention interpolate unfold
    gaussian_nll_loss poisson_nll_loss cosine_similarity
    """.split()  # noqa: SIM905
)
"""Names of ops whose overloads take other arguments than the functions in torch.nn.functional."""


def _of_aten(target: Any) -> str | None:
    """The name of an overload of aten's with the arguments of the torch function of that name."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    name = target._schema.name.partition("::")[2]
    name = _ATEN.get(name, name)
    return name if name not in _OTHER_ARGUMENTS and name.rstrip("_") in _KNOWN else None


@functools.cache
def _pointwise(name: str) -> bool:
    """Does torch say, of every overload that returns a new tensor, that it treats elements alike?"""
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    found = []
    for overload in (getattr(packet, o) for o in packet.overloads()):
        schema, tags = overload._schema, overload.tags
        if schema.is_mutable or not any("Tensor" in str(a.type) for a in schema.arguments):
            continue
        known = torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
        found.append(known and [str(r.type) for r in schema.returns] == ["Tensor"])
    return bool(found) and all(found)


def is_known(name: str) -> bool:
    """Is this the name of an op in one of the lists here, or of a pointwise or copying one of torch's?"""
    return name.strip("_") in _KNOWN or name in ("slice_scatter", "select_scatter", "eye") or _pointwise(name)


def is_pointwise(node: fx.Node) -> bool:
    """Is a call one that torch itself calls pointwise: every operand broadcast, every element on its own?"""
    return "inplace" not in node.kwargs and "out" not in node.kwargs and _pointwise(op_name(node))


def label(node: fx.Node) -> str:
    """An op as users write it, for refusals."""
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    target: Any = node.target
    return getattr(target, "__name__", str(target))
