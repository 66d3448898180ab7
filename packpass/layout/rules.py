"""Layout rules: which axes of an op's inputs and outputs hold the same tokens.

A rule is a small function ``rule(axes, node)`` that links axes, registered under the op's plain name. An op without a
rule links nothing: the layout is lost there, never guessed. An op that moves or mixes slots along a dimension (a sort,
a running sum) does not link that dimension.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from packpass._registry import registrar
from packpass.layout.attention import attention
from packpass.layout.axes import Axes, Axis, value_of
from packpass.layout.links import link
from packpass.layout.names import argument, example, op_name

LayoutRule = Callable[[Axes, fx.Node], None]
RULES: dict[str, LayoutRule] = {}

ELEMENTWISE = frozenset(
    """
    add sub rsub mul div floor_divide floordiv remainder mod fmod pow float_power neg positive pos abs exp exp2 expm1
    log log2 log10 log1p sqrt rsqrt square sin cos tan asin acos atan sinh cosh tanh atan2 sigmoid erf erfc floor ceil
    round trunc frac sign sgn reciprocal clamp clip clamp_min clamp_max minimum maximum fmin fmax where eq ne lt le gt
    ge logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not and_ or_ xor
    invert lshift rshift masked_fill lerp addcmul addcdiv nan_to_num isnan isinf isfinite relu gelu silu leaky_relu elu
    selu celu softplus hardtanh relu6 mish logsigmoid hardswish hardsigmoid tanhshrink softsign threshold heaviside
    copysign hypot logaddexp clone detach to type type_as float double half bfloat16 long int short bool contiguous
    alias logit signbit cpu cuda zeros_like ones_like full_like empty_like rand_like randn_like dropout alpha_dropout
    feature_alpha_dropout masked_scatter quick_gelu requires_grad_ isin silu_ relu_ dropout_ snapshot
    l1_loss mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div copy
    """.split()  # noqa: SIM905
)


rule = registrar(RULES)
"""Registers a rule under plain op names."""


def apply(axes: Axes, node: fx.Node) -> None:
    """Link what the op of ``node`` keeps together."""
    if link(axes, node):
        return
    name = op_name(node)
    fn = RULES.get(name)
    if fn is None:
        base = name[:-1] if name.endswith("_") and not name.endswith("__") else name
        if name in ELEMENTWISE or base in ELEMENTWISE or base == "copy":
            fn = elementwise
    if fn is not None:
        fn(axes, node)
    else:
        _varlen_attention(axes, node)


def _varlen_attention(axes: Axes, node: fx.Node) -> None:
    """Slot p of the result belongs to query p."""
    found = attention(node)
    if found is None:
        return
    for item in outputs(node):
        value = value_of(node, item)
        if isinstance(value, torch.Tensor) and value.dim() == example(found.query).dim():
            for d in range(value.dim() - 1):
                axes.link(Axis(found.query, d), Axis(node, d, item))


def tensor_inputs(node: fx.Node) -> list[fx.Node]:
    return [n for n in node.all_input_nodes if isinstance(example(n), torch.Tensor)]


def elementwise(axes: Axes, node: fx.Node) -> None:
    """Dimensions line up from the right; broadcast ones do not link. Operands are linked with each other as well, so
    that a result without dimensions (a loss) still says that its inputs belong together."""
    inputs = tensor_inputs(node)
    _aligned(axes, [*inputs, node] if isinstance(example(node), torch.Tensor) else inputs)


def _aligned(axes: Axes, group: list[fx.Node]) -> None:
    rank = max((example(n).dim() for n in group), default=0)
    for back in range(1, rank + 1):
        full = [n for n in group if example(n).dim() >= back and not is_one(example(n).shape[-back])]
        for a, b in itertools.combinations(dict.fromkeys(full), 2):
            axes.same(a, -back, b, -back)


def is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def keep_others(axes: Axes, node: fx.Node, lost: Iterable[int], source: fx.Node | None = None) -> None:
    """Same rank in and out; every dimension but ``lost`` keeps its tokens."""
    x = source if source is not None else node.args[0]
    if not isinstance(x, fx.Node) or not isinstance(example(x), torch.Tensor):
        return
    rank = example(x).dim()
    gone = {d % rank for d in lost if isinstance(d, int)} if rank else set()
    for item in outputs(node):
        value = value_of(node, item)
        if isinstance(value, torch.Tensor) and value.dim() == rank:
            for d in range(rank):
                if d not in gone:
                    axes.link(Axis(x, d), Axis(node, d, item))


def outputs(node: fx.Node) -> list[int | None]:
    """The items of a node's value: [None] for a tensor."""
    value = example(node)
    return list(range(len(value))) if isinstance(value, (tuple, list)) else [None]


@rule("type_as", "to", "isin")
def _first_only(axes: Axes, node: fx.Node) -> None:
    """The other operand lends its dtype and device, or is a set of values: whatever its size, it is another row."""
    keep_others(axes, node, (), argument(node, 0, "elements"))


@rule("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like")
def _like(axes: Axes, node: fx.Node) -> None:
    """Memory of the same form: it is the row's if nothing else is put there. What is, says whose it is."""
    if node in axes.blank:
        keep_others(axes, node, (), argument(node, 0, "input"))


@rule("masked_scatter", "masked_scatter_")
def _masked_scatter(axes: Axes, node: fx.Node) -> None:
    """The source is read in its own order, whatever its size."""
    source = argument(node, 2, "source")
    _aligned(
        axes, [n for n in (*tensor_inputs(node), node) if n is not source and isinstance(example(n), torch.Tensor)]
    )


# === Token-wise ops ==========================================================================================


@rule("linear")
def _linear(axes: Axes, node: fx.Node) -> None:
    x = node.args[0] if node.args else node.kwargs["input"]
    keep_others(axes, node, (-1,), x if isinstance(x, fx.Node) else None)


@rule("embedding")
def _embedding(axes: Axes, node: fx.Node) -> None:
    """``F.embedding(ids, table)``, ``torch.embedding(table, ids)``."""
    table_first = getattr(node.target, "__module__", "") != "torch.nn.functional"
    ids = argument(node, 1, "indices") if table_first else argument(node, 0, "input")
    for d in range(example(ids).dim()):
        axes.same(ids, d, node, d)


@rule("one_hot")
def _one_hot(axes: Axes, node: fx.Node) -> None:
    ids = argument(node, 0, "tensor")
    for d in range(example(ids).dim()):
        axes.same(ids, d, node, d)


@rule("layer_norm", "rms_norm", "native_layer_norm", "_fused_rms_norm")
def _normalised(axes: Axes, node: fx.Node) -> None:
    shape = argument(node, 1, "normalized_shape")
    keep_others(axes, node, range(-len(shape), 0) if isinstance(shape, (tuple, list, torch.Size)) else (-1,))


@rule("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
@rule("normalize", "glu", "sort", "argsort", "topk", "flip", "renorm", "softmin")
def _along_one(axes: Axes, node: fx.Node) -> None:
    """Ops that mix along one dimension (of any size afterwards)."""
    position, name, default = {
        "normalize": (2, "dim", 1),
        "glu": (1, "dim", -1),
        "sort": (1, "dim", -1),
        "argsort": (1, "dim", -1),
        "topk": (2, "dim", -1),
        "flip": (1, "dims", None),
    }.get(op_name(node), (1, "dim", None))
    dims = argument(node, position, name, default)
    if op_name(node) == "flip" and isinstance(dims, int):
        dims = node.args[1:]
    if dims is not None:
        keep_others(axes, node, dims if isinstance(dims, (tuple, list)) else (dims,))


@rule("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "var", "std", "norm", "vector_norm", "any")
@rule("all", "logsumexp", "prod", "median", "count_nonzero", "nansum", "nanmean", "var_mean", "std_mean")
def _reduce(axes: Axes, node: fx.Node) -> None:
    """A reduction over other dimensions keeps the packed one, whatever ``keepdim`` is."""
    x = argument(node, 0, "input")
    if not isinstance(x, fx.Node):
        return
    name = op_name(node)
    if name in ("max", "min") and len(node.args) > 1 and isinstance(node.args[1], fx.Node):
        return elementwise(axes, node)
    at = {"norm": 2, "vector_norm": 2}.get(name, 1)
    dims = argument(node, at, "dim", node.kwargs.get("axis"))
    if dims is None:
        return None
    rank = example(x).dim()
    gone = {d % rank for d in (dims if isinstance(dims, (tuple, list)) else (dims,)) if isinstance(d, int)}
    kept = [d for d in range(rank) if d not in gone]
    for item in outputs(node):
        value = value_of(node, item)
        if not isinstance(value, torch.Tensor):
            continue
        if value.dim() == rank:
            for d in kept:
                axes.link(Axis(x, d), Axis(node, d, item))
        elif value.dim() == len(kept):
            for to, d in enumerate(kept):
                axes.link(Axis(x, d), Axis(node, to, item))
    return None


@rule("matmul", "mm", "bmm", "mv")
def _matmul(axes: Axes, node: fx.Node) -> None:
    a, b = argument(node, 0, "input"), argument(node, 1, "other", node.kwargs.get("mat2"))
    if not (isinstance(a, fx.Node) and isinstance(b, fx.Node)) or min(example(a).dim(), example(b).dim()) < 2:
        return
    axes.same(a, -2, node, -2)
    axes.same(b, -1, node, -1)
    for x in (a, b):
        for back in range(3, example(x).dim() + 1):
            axes.same(x, -back, node, -back)


@rule("addmm", "baddbmm")
def _addmm(axes: Axes, node: fx.Node) -> None:
    a, b = node.args[1], node.args[2]
    if isinstance(a, fx.Node) and isinstance(b, fx.Node):
        axes.same(a, -2, node, -2)
        axes.same(b, -1, node, -1)


@rule("einsum")
def _einsum(axes: Axes, node: fx.Node) -> None:
    equation, operands = node.args[0], node.args[1:]
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        return
    left, right = equation.replace(" ", "").split("->")
    for letters, operand in zip(left.split(","), operands, strict=False):
        for d, letter in enumerate(letters):
            if letter in right and letters.count(letter) == 1 and isinstance(operand, fx.Node):
                axes.same(operand, d, node, right.index(letter))


@rule("cross_entropy", "nll_loss", "cross_entropy_loss")
def _cross_entropy(axes: Axes, node: fx.Node) -> None:
    """``[N, V]`` scores and ``[N]`` targets (or ``[N, V, d]`` and ``[N, d]``): rows belong together."""
    scores, target = argument(node, 0, "input"), argument(node, 1, "target")
    if not (isinstance(scores, fx.Node) and isinstance(target, fx.Node)):
        return
    pairs = [(0, 0)] + [(d + 1, d) for d in range(1, example(target).dim())]
    if example(target).dim() != example(scores).dim() - 1:
        return
    for a, b in pairs:
        axes.same(scores, a, target, b)
        if isinstance(example(node), torch.Tensor) and example(node).dim() == example(target).dim():
            axes.same(target, b, node, b)


@rule("scaled_dot_product_attention")
def _attention(axes: Axes, node: fx.Node) -> None:
    """Slot p of the result belongs to query p; keys go with values."""
    q, k, v = (argument(node, i, n) for i, n in enumerate(("query", "key", "value")))
    for d in range(example(q).dim() - 1):
        axes.same(q, d, node, d)
    for d in range(example(k).dim() - 1):
        axes.same(k, d, v, d)


@rule("higher_order::flex_attention")
def _flex_attention(axes: Axes, node: fx.Node) -> None:
    """``[B, H, T, D]`` and, as a second result, ``[B, H, T]``."""
    q, k, v = node.args[:3]
    if not (isinstance(q, fx.Node) and isinstance(k, fx.Node) and isinstance(v, fx.Node)):
        return
    axes.same(k, 2, v, 2)
    for item in outputs(node):
        for d in range(3):
            axes.link(Axis(q, d), Axis(node, d, item))


@rule("gather", "take_along_dim", "index_select")
def _gather(axes: Axes, node: fx.Node) -> None:
    at = 2 if op_name(node) == "take_along_dim" else 1
    dim = argument(node, at, "dim")
    if isinstance(dim, int):
        keep_others(axes, node, (dim,))
