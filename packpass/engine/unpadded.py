"""Runs a padded model on its real tokens: what `passes.eliminate_padding` prepares, call by call.

Before each call the host reads, in one transfer, how many tokens are real and whether the batch satisfies what the
packed graph takes for granted. With enough padding the plan of the packed rows is computed on the device and the packed
graph runs; otherwise the padded graph does, as it is. Each is compiled when it is first needed, once for every number
of real tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from packpass._compat import compile_for, holds_for
from packpass.engine.verify import same_tokens
from packpass.ops._pack_plan import pack_plan_op
from packpass.semantics import example, op_name

if TYPE_CHECKING:
    from packpass.decisions.packed_form import PackedForm

log = logging.getLogger("packpass.unpadded")

FULL = 0.95
"""Share of real tokens from which a batch stays padded: what padding costs is then less than packing does."""

Inner = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def unpadded(found: PackedForm, padded: fx.GraphModule, inner: Inner, names: str = "") -> Callable[..., Any]:
    """A callable for ``padded`` that computes real tokens only, where that pays.

    ``names``: of the rewrite, to compare the two graphs before every call that runs packed (``packpass.verify``).
    """
    compare = same_tokens(padded, found.packed, found.results, names) if names and not found.random else None
    if names and found.random:
        log.warning("packpass.verify: %s cannot be verified: the model draws random numbers", names)
    places = [node for node in padded.graph.nodes if node.op == "placeholder"]
    shapes = [example(node) for node in places]
    dynamic = [dynamic_of(value) for value in shapes]
    numbers = [i for i, node in enumerate(places) if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False)]
    whole = Variants(padded, dynamic, numbers, inner)
    # Of the plan only the number of real tokens differs from call to call; the mask's own sizes are as in the inputs.
    packed = Variants(found.packed, [*dynamic, None, None, None], numbers, inner, tokens=len(dynamic))

    def run(*inputs: Any) -> Any:
        with torch.no_grad():
            mask, *labels = found.prologue(*inputs)
            keep, flags = _read(found, mask.detach(), labels)
            total, *satisfied = torch.stack([keep.sum(), *(flag.long() for flag in flags)]).tolist()
            # One token, or none, would be a graph of its own.
            if not all(satisfied) or total < 2 or total > FULL * keep.numel():
                plan = None
            else:
                cu_seqlens, _, source, slots, *_ = pack_plan_op(keep, 1, total)
                plan = (source, slots, cu_seqlens)
        if plan is None:
            return whole(*inputs)
        if compare is not None:
            compare(keep, inputs, plan)
        return packed(*inputs, *plan)

    return run


def dynamic_of(value: Any) -> frozenset[int] | None:
    """Dimensions that are symbolic in the graph; of a symbolic number: 0."""
    if isinstance(value, torch.SymInt):
        return frozenset({0})
    if isinstance(value, Tensor):
        return frozenset(d for d, n in enumerate(value.shape) if not isinstance(n, int))
    return None


def _read(found: PackedForm, mask: Tensor, labels: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Which tokens are real, bool ``[B, S]``, and 0-d bools that must all be True."""
    mask = mask.reshape(mask.shape[0], mask.shape[-1])
    flags = []
    if mask.dtype is torch.bool:
        keep = ~mask if found.inverted else mask
    else:
        keep = mask == (0 if found.inverted else 1)
        flags.append((keep | (mask == (1 if found.inverted else 0))).all())
    remaining = iter(labels)
    for kind, value, parts in found.conditions:
        if kind == "column":  # every row has a real token there
            flags.append(keep.select(1, value).all())
        elif kind == "right-padded":
            flags.append((keep[:, :-1] | ~keep[:, 1:]).all())
        elif kind == "picked":  # tokens are looked up by these columns of the rows; negative ones count from the end
            columns, length = next(remaining).long().reshape(keep.shape[0], -1), keep.shape[1]
            inside = (columns >= (-length if value else 0)) & (columns < length)
            flags.append((inside & keep.gather(1, columns.remainder(length))).all())
        else:  # labels of padding are ignored by the loss
            flags.append((keep | (_per_token(next(remaining), parts, keep) == value).all(-1)).all())
    return keep.contiguous(), flags


def _per_token(x: Tensor, parts: tuple[Any, ...], keep: Tensor) -> Tensor:
    """``[B, S, n]``: the values of each token. ``parts``: what the slots of x count, "B", "S" or a number of them."""
    size = {"B": keep.shape[0], "S": keep.shape[1]}
    sizes = [size[p] if isinstance(p, str) else p for p in parts]
    order = [parts.index("B"), parts.index("S"), *(i for i, p in enumerate(parts) if not isinstance(p, str))]
    return x.reshape(sizes).permute(order).reshape(*keep.shape, -1)


class Variants:
    """A graph that is compiled at its first call, for all numbers of real tokens.

    ``numbers``: inputs that are Python floats in 0-d tensors, as Dynamo passes them under dynamic shapes (an epsilon, a
    scale). They are constants of what is compiled, which is therefore good for their values only.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        dynamic: Sequence[frozenset[int] | None],
        numbers: Sequence[int],
        inner: Inner,
        tokens: int | None = None,
    ) -> None:
        self.gm, self.dynamic, self.numbers = gm, list(dynamic), list(numbers)
        self.inner, self.tokens = inner, tokens
        self.compiled: list[tuple[list[Any], Any, Callable[..., Any]]] = []

    def __call__(self, *inputs: Any) -> Any:
        return self.ready(inputs)(*inputs)

    def ready(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        """What is compiled for inputs like these; compiled now if nothing is."""
        numbers = [inputs[i].item() for i in self.numbers]
        for values, guards, call in self.compiled:
            if values == numbers and holds_for(guards, inputs):
                return call
        log.info("compiling the %s graph", "padded" if self.tokens is None else "packed")
        guards, call = compile_for(self.inner, self._with_constants(numbers), inputs, self._sizes(inputs))
        self.compiled.append((numbers, guards, call))
        return call

    def _with_constants(self, numbers: list[Any]) -> fx.GraphModule:
        """The graph with the numbers in place of what reads them."""
        if not numbers:
            return self.gm
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        graph.output(graph.graph_copy(self.gm.graph, copies))
        places = [node for node in graph.nodes if node.op == "placeholder"]
        for i, number in zip(self.numbers, numbers, strict=True):
            for user in list(places[i].users):
                if op_name(user) == "item":
                    user.replace_all_uses_with(number)
                    graph.erase_node(user)
        return fx.GraphModule(self.gm, graph)

    def _sizes(self, inputs: Sequence[Any]) -> list[tuple[frozenset[int], frozenset[int]]]:
        """Per input the dimensions that may change together with equal ones, and those that change alone."""
        sizes: list[tuple[frozenset[int], frozenset[int]]] = []
        nothing: frozenset[int] = frozenset()
        for i, found in enumerate(self.dynamic):
            if self.tokens is None or i < self.tokens:
                sizes.append((found or nothing, nothing))
            elif inputs[i].dim() == 2:  # slots, as large as the mask
                sizes.append((frozenset({0, 1}) if any(self.dynamic[: self.tokens]) else nothing, nothing))
            else:
                boundaries = i == self.tokens + 2 and not any(self.dynamic[: self.tokens])
                sizes.append((nothing, nothing if boundaries else frozenset({0})))
        return sizes
