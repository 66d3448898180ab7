"""Layout rules of calls that join, split, cut, pad or reshape: which dimensions come through whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true as known
from packpass.layout.axes import Axes, Axis
from packpass.layout.names import argument, example, op_name
from packpass.layout.rules import is_one, keep_others, outputs, rule


@rule("cat", "stack", "hstack", "vstack")
def _cat(axes: Axes, node: fx.Node) -> None:
    tensors = argument(node, 0, "tensors")
    if op_name(node) not in ("cat", "stack") or not isinstance(tensors, (tuple, list)):
        return
    dim = argument(node, 1, "dim", node.kwargs.get("axis", 0))
    rank = example(node).dim()
    for t in tensors:
        if not isinstance(t, fx.Node) or not isinstance(example(t), torch.Tensor):
            continue
        if op_name(node) == "cat":
            if example(t).dim() == rank:
                keep_others(axes, node, (dim,), t)
        else:
            for d in range(rank - 1):
                axes.same(t, d, node, d + (d >= dim % rank))


@rule("chunk", "split", "split_with_sizes", "tensor_split", "unbind", "unsafe_split", "unsafe_chunk")
def _split(axes: Axes, node: fx.Node) -> None:
    x = node.args[0]
    if not isinstance(x, fx.Node):
        return
    at = 1 if op_name(node) == "unbind" else 2
    dim = argument(node, at, "dim", 0) % example(x).dim()
    for item in outputs(node):
        for d in range(example(x).dim()):
            if d == dim:
                continue
            to = d - (d > dim) if op_name(node) == "unbind" else d
            axes.link(Axis(x, d), Axis(node, to, item))


@rule("transpose", "t", "permute", "movedim", "unsqueeze", "squeeze", "adjoint", "getattr")
def _permute(axes: Axes, node: fx.Node) -> None:
    """``x.T`` is a call of ``getattr``."""
    x = node.args[0]
    if not isinstance(x, fx.Node) or not all(isinstance(v, torch.Tensor) for v in (example(x), example(node))):
        return
    order = permutation(node)
    for to, d in enumerate(order or ()):
        if d >= 0:
            axes.same(x, d, node, to)


def permutation(node: fx.Node) -> list[int] | None:
    """For every dimension of a permuting or (un)squeezing op's result: the input's dimension, or -1 for a new one."""
    x = node.args[0]
    rank = example(x).dim()
    rest = [a for a in node.args[1:] if not isinstance(a, fx.Node)]
    if len(rest) != len(node.args) - 1:
        return None
    if op_name(node) == "squeeze":
        dims = argument(node, 1, "dim")
        given = range(rank) if dims is None else (dims if isinstance(dims, (tuple, list)) else (dims,))
        gone = {d % rank for d in given}
        return [d for d in range(rank) if d not in gone or not is_one(example(x).shape[d])]
    if op_name(node) == "unsqueeze":
        at = int(argument(node, 1, "dim")) % (rank + 1)
        order = list(range(rank))
        order.insert(at, -1)
        return order
    # Distinct strides tell where each dimension went.
    probe = torch.empty(1, device="meta").as_strided([1] * rank, list(range(1, rank + 1)))
    try:
        target: Any = node.target
        out = (
            getattr(probe, target)(*rest, **node.kwargs)
            if node.op == "call_method"
            else target(probe, *rest, **node.kwargs)
        )
        return [s - 1 for s in out.stride()]
    except Exception:
        return None


@rule("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as", "_unsafe_view", "ravel")
def _reshape(axes: Axes, node: fx.Node) -> None:
    x = argument(node, 0, "input")
    if isinstance(x, fx.Node) and isinstance(example(x), torch.Tensor):
        for d, to in kept_whole(example(x).shape, example(node).shape):
            axes.same(x, d, node, to)


def kept_whole(before: Any, after: Any) -> list[tuple[int, int]]:
    """Pairs of dimensions that a reshape keeps whole: as many elements on their left, and as many slots."""
    pairs = []
    for d, (size, left) in enumerate(zip(before, _lefts(before), strict=True)):
        if is_one(size):
            continue
        for to, (other, other_left) in enumerate(zip(after, _lefts(after), strict=True)):
            if (size is other or known(size == other)) and (left is other_left or known(left == other_left)):
                pairs.append((d, to))
                break
    return pairs


def _lefts(shape: Any) -> list[Any]:
    out, product = [], 1
    for size in shape:
        out.append(product)
        product = product * size
    return out


@rule("expand", "expand_as", "broadcast_to", "repeat", "tile")
def _expand(axes: Axes, node: fx.Node) -> None:
    x = node.args[0]
    if isinstance(x, fx.Node):
        for back in range(1, example(x).dim() + 1):
            if not is_one(example(x).shape[-back]):
                axes.same(x, -back, node, -back)


@rule("select", "narrow")
def _select(axes: Axes, node: fx.Node) -> None:
    x, dim = node.args[0], argument(node, 1, "dim")
    if not isinstance(x, fx.Node) or not isinstance(dim, int):
        return
    dim %= example(x).dim()
    for d in range(example(x).dim()):
        if d != dim:
            axes.same(x, d, node, d - (d > dim) if op_name(node) == "select" else d)


@rule("getitem")
def _getitem(axes: Axes, node: fx.Node) -> None:
    base, index = node.args
    if not isinstance(base, fx.Node):
        return
    if isinstance(example(base), (tuple, list)):
        if isinstance(index, int) and isinstance(example(node), torch.Tensor):
            for d in range(example(node).dim()):
                axes.link(Axis(base, d, index % len(example(base))), Axis(node, d))
        return
    if not isinstance(example(base), torch.Tensor):
        return
    for d, to in kept_by_index(index, example(base).dim()) or ():
        axes.same(base, d, node, to)


def kept_by_index(index: Any, rank: int) -> list[tuple[int, int]] | None:
    """``(dimension, dimension of the result)`` for every full slice of an index of integers, slices, None and
    Ellipsis."""
    entries = list(index) if isinstance(index, tuple) else [index]
    if any(not (e is None or e is Ellipsis or isinstance(e, (int, slice))) or isinstance(e, bool) for e in entries):
        return None
    given = sum(e is not None and e is not Ellipsis for e in entries)
    if Ellipsis in entries:
        at = entries.index(Ellipsis)
        entries[at : at + 1] = [slice(None)] * (rank - given)
    else:
        entries += [slice(None)] * (rank - given)
    pairs, d, to = [], 0, 0
    for entry in entries:
        if entry is None:
            to += 1
        elif isinstance(entry, int):
            d += 1
        else:
            if entry == slice(None):
                pairs.append((d, to))
            d, to = d + 1, to + 1
    return pairs


@rule("setitem")
def _setitem(axes: Axes, node: fx.Node) -> None:
    """``y[:, :, :4] = v``: the dimensions that are assigned whole line up with the value's, from the right."""
    base, index, value = node.args
    if not (isinstance(base, fx.Node) and isinstance(value, fx.Node) and isinstance(example(value), torch.Tensor)):
        return
    kept = kept_by_index(index, example(base).dim())
    if kept is None:
        return
    entries = index if isinstance(index, tuple) else (index,)
    rank = example(base).dim() - sum(isinstance(e, int) for e in entries) + sum(e is None for e in entries)
    for d, to in kept:
        if example(value).dim() >= rank - to:
            axes.same(base, d, value, to - rank)


@rule("pad")
def _pad(axes: Axes, node: fx.Node) -> None:
    x, pad = argument(node, 0, "input"), argument(node, 1, "pad")
    if isinstance(x, fx.Node) and isinstance(pad, (tuple, list)):
        touched = [-1 - i for i in range(len(pad) // 2) if tuple(pad[2 * i : 2 * i + 2]) != (0, 0)]
        keep_others(axes, node, touched, x)


@rule("roll")
def _roll(axes: Axes, node: fx.Node) -> None:
    """A roll moves tokens, but the boundaries cut the result at the same places."""
    keep_others(axes, node, ())


@rule("packpass::packed")
def _declared(axes: Axes, node: fx.Node) -> None:
    keep_others(axes, node, ())


@rule("packpass::packed_roll", "packpass::packed_flip")
def _packed(axes: Axes, node: fx.Node) -> None:
    keep_others(axes, node, ())


@rule("tril", "triu")
def _triangle(axes: Axes, node: fx.Node) -> None:
    keep_others(axes, node, ())
