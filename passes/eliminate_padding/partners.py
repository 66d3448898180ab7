"""Losses of all tokens of a row but the last or the first, as losses over whole rows.

    cross_entropy(logits[:, :-1].reshape(-1, V), labels[:, 1:].reshape(-1))

is how a model predicts the next token: the last slot of a row has no partner. With an ignored label for it the loss
over whole rows is the same, and so are the gradients, for a loss skips what is ignored:

    cross_entropy(logits.reshape(-1, V), pad(labels[:, 1:], (0, 1), value=-100).reshape(-1))

Scores without a partner are replaced by 0 first, for a NaN among them would come back as a gradient. Whatever lies
between the cut and the loss (casts, views, the last linear layer) is done to whole rows.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from packpass.semantics import argument, call_of, example, meaning_of, op_of
from packpass.semantics.build import Builder, NotBuilt
from packpass.semantics.effects import effects_of
from packpass.semantics.losses import OF_CLASSES, reduction_of
from packpass.semantics.meaning import KEPT, Cut
from packpass.semantics.memory import writes_of
from passes.eliminate_padding.tile import Across, Dims, Tile, carried, moved_by, named, same
from passes.nodes import copy_of
from passes.prune import prune

log = logging.getLogger("packpass.passes.eliminate_padding")

_MOST = 8
"""How many slots may have no partner: sizes that are symbols are compared with every number up to it."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One call between the cut and the loss; ``dims`` of its result. ``only_sizes``: a view of other sizes."""

    node: fx.Node
    dims: Dims
    only_sizes: bool


@dataclasses.dataclass(frozen=True)
class Cutting:
    """A loss, the cut ``whole[:, first : size - last]`` that its scores come from, and the steps in between."""

    loss: fx.Node
    cut: fx.Node
    whole: fx.Node
    first: int
    last: int
    steps: tuple[Step, ...]
    ignored: int


def with_partners(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with such losses taken over whole rows: a copy, or ``gm`` itself where there are none."""
    if next(_cuttings(gm.graph), None) is None:
        return gm
    graph = copy_of(gm.graph)
    try:
        for found in list(_cuttings(graph)):
            _over_whole_rows(graph, found)
    except NotBuilt as reason:  # a call between the cut and the loss that names the size of what was cut
        log.info("a loss stays a loss of part of the rows: %s", reason)
        return gm
    graph.lint()
    return fx.GraphModule(gm, graph)


# === Find ====================================================================================================


def _cuttings(graph: fx.Graph) -> Iterator[Cutting]:
    for node in graph.nodes:
        if op_of(node) in OF_CLASSES and (found := _cutting(node)) is not None:
            yield found


def _cutting(loss: fx.Node) -> Cutting | None:
    call = call_of(loss)
    ignored = call.get("ignore_index") if call is not None else None
    scores, target = argument(loss, 0, "input"), argument(loss, 1, "target")
    if reduction_of(call) not in ("mean", "sum") or type(ignored) is not int:
        return None
    if not isinstance(target, fx.Node) or example(target).dtype is not torch.int64:
        return None  # probabilities of classes
    node, chain = scores, list[fx.Node]()
    while isinstance(node, fx.Node) and (ends := _cut(node)) is None:
        before = _operand(node)
        if before is None:
            return None
        chain.append(node)
        node = before
    if not isinstance(node, fx.Node) or ends is None:
        return None
    rows, slots = example(node).shape[:2]
    dims = _cut_dims(node)
    steps = []
    for part in reversed(chain):
        step = _step(part, Tile(rows, slots), dims)
        if step is None:
            return None
        steps.append(step)
        dims = step.dims
    merged = len(dims) == 2 and dims[0] == ("B", "S") and not named(dims[1])
    apart = len(dims) == 3 and (dims[0], dims[2]) == (("B",), ("S",)) and not named(dims[1])
    if not merged and not apart:
        return None
    return Cutting(loss, node, node.args[0], *ends, tuple(steps), ignored)  # type: ignore[arg-type]


def _cut_dims(cut: fx.Node) -> Dims:
    return (("B",), ("S",), *((n,) for n in example(cut).shape[2:]))


def _operand(node: fx.Node) -> fx.Node | None:
    """The first operand of a call that has one result and does nothing but compute it."""
    call = call_of(node)
    if call is None or call.several or not call.operands or writes_of(call) or not effects_of(node).repeatable:
        return None
    first = call.operands[0]
    return first.node if first.at is None and first.argument not in call.unread else None


def _cut(node: fx.Node) -> tuple[int, int] | None:
    """How many slots of every row ``x[:, first : size - last]`` leaves out at either end."""
    call = call_of(node)
    found = meaning_of(call)
    if call is None or found is None or len(found.relations) != 1 or _operand(node) is not node.args[0]:
        return None
    (relation,) = found.relations
    axes = relation.operands[0] or ()
    if len(axes) < 3 or len(call.operands) != 1 or relation.roles:
        return None
    how = axes[1].how
    others = [axis for d, axis in enumerate(axes) if d != 1]
    if not isinstance(how, Cut) or how.step != 1 or any(axis.how != KEPT for axis in others):
        return None
    if list(relation.result) != [axis.loops for axis in axes]:
        return None
    whole, left = call.operands[0].value.shape[1], call.results[0].shape[1]
    if type(how.start) is not int or not 0 <= how.start <= _MOST:
        return None
    return next(((how.start, n) for n in range(_MOST + 1) if same(left + how.start + n, whole)), None)


def _step(node: fx.Node, tile: Tile, dims: Dims) -> Step | None:
    """What a call does to scores, if it treats every token by itself."""
    call = call_of(node)
    found = meaning_of(call)
    if call is None or found is None or len(found.relations) != 1:
        return None
    (relation,) = found.relations
    one = moved_by(tile, call, dims) or carried(tile, relation, {0: dims})
    if isinstance(one, Across) or any(same(n, 1) for n in (tile.batch, tile.length)):
        return None
    for axes in relation.operands[1:]:
        if any(named(one.along(axis.loops)) for axis in axes or ()):
            return None  # another value of the tokens, which is cut as well
    return Step(node, one.dims, found.family == "views" and relation.in_order())


# === Transform ===============================================================================================


def _over_whole_rows(graph: fx.Graph, found: Cutting) -> None:
    """Every call stands where the one that it is for stands: modes may begin or end in between, and memory change."""
    before = found.cut
    new, dims = _without_lonely_scores(Builder(graph, found.cut, like=found.whole), found), _cut_dims(found.cut)
    for step in found.steps:
        build = Builder(graph, step.node, like=found.whole)
        if not step.only_sizes:
            new = _again(build, step.node, before, new)
        elif step.dims != dims:
            new = build.call("reshape", new, *_sizes(build, found.whole, step.dims), method=True)
        before, dims = step.node, step.dims
    build = Builder(graph, found.loss, like=found.whole)
    scores, target = argument(found.loss, 0, "input"), argument(found.loss, 1, "target")
    labels = build.call("reshape", target, _size(build, found.whole, 0), -1, method=True)
    labels = build.call(torch.nn.functional.pad, labels, (found.first, found.last), value=found.ignored)
    if len(dims) == 2:
        labels = build.call("reshape", labels, -1, method=True)
    changed = {scores: new, target: labels}
    found.loss.args = fx.map_arg(found.loss.args, lambda n: changed.get(n, n))
    found.loss.kwargs = fx.map_arg(found.loss.kwargs, lambda n: changed.get(n, n))
    prune(graph, [scores, target])


def _without_lonely_scores(build: Builder, found: Cutting) -> fx.Node:
    """The whole rows, with 0 in the slots that the cut leaves out."""
    value: Tensor = example(found.whole)
    slots = _size(build, found.whole, 1)
    places = build.call(torch.arange, slots, device=value.device)
    alone = [build.call(torch.lt, places, found.first)] if found.first else []
    if found.last:
        alone.append(build.call(torch.ge, build.call(torch.add, places, found.last), slots))
    new = found.whole
    for part in alone:
        part = build.call("view", part, 1, -1, *[1] * (value.dim() - 2), method=True)
        new = build.call("masked_fill", new, part, 0, method=True)
    return new


def _sizes(build: Builder, whole: fx.Node, dims: Dims) -> list[Any]:
    """Of a view of whole rows; -1 where the batch and the tokens are one dimension."""
    own: dict[Any, Any] = {("B",): lambda: _size(build, whole, 0), ("S",): lambda: _size(build, whole, 1)}
    return [own[parts]() if parts in own else -1 if named(parts) else math.prod(parts) for parts in dims]


def _size(build: Builder, node: fx.Node, dim: int) -> Any:
    """A size as a number, or read off an input: labels must not depend on what scores are computed of."""
    size = example(node).shape[dim]
    if isinstance(size, int):
        return size
    for place in build.graph.find_nodes(op="placeholder"):
        shape = getattr(example(place), "shape", ())
        if (d := next((d for d, n in enumerate(shape) if same(n, size)), None)) is not None:
            return build.call("size", place, d, method=True)
    return build.call("size", node, dim, method=True)


def _again(build: Builder, node: fx.Node, before: fx.Node, new: fx.Node) -> fx.Node:
    """The same call of another first operand."""
    args = fx.map_arg(node.args, lambda n: new if n is before else n)
    kwargs = fx.map_arg(node.kwargs, lambda n: new if n is before else n)
    return build.call(node.target, *args, method=node.op == "call_method", **kwargs)
