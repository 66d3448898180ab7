"""Nodes of a captured graph run one by one: what markers mean for one document, and torch's own calls."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch.nn.utils.rnn import pad_sequence

from packpass import markers
from packpass.decisions.location import location_of_node


def _traced_shape(node: fx.Node) -> tuple[Any, ...] | None:
    """The traced size of each dimension: a number, a symbol, or None for anything else."""
    fake = node.meta.get("example_value")
    if not isinstance(fake, torch.Tensor):
        return None
    sizes = (s.node.expr if isinstance(s, torch.SymInt) else s for s in fake.shape)
    return tuple(s if isinstance(s, int) or s.is_Symbol else None for s in sizes)


def _none_of(node: fx.Node) -> torch.Tensor:
    """What a join has of documents where none has appended anything, beside what is in the list all the same."""
    fake: torch.Tensor = node.meta["example_value"]
    at = int(node.args[1]) % fake.dim()  # type: ignore[arg-type]
    sizes = [0 if d == at else size for d, size in enumerate(fake.shape)]
    if not all(isinstance(size, int) for size in sizes):
        raise RuntimeError(
            f"packpass: at {location_of_node(node) or node.name} no document has appended to a list of tensors whose "
            'sizes change. options={"packpass.symbolic_loops": False} compiles the model without capturing such loops'
        )
    return torch.empty(sizes, dtype=fake.dtype, device=fake.device)


class Interpreter:
    """Runs nodes of a graph on the values of others."""

    def __init__(self, part: fx.GraphModule) -> None:
        self.part = part
        self.shapes: dict[fx.Node, tuple[Any, ...] | None] = {}

    def know_shapes(self, nodes: Iterable[fx.Node]) -> None:
        """Note what tracing took for the shapes of these."""
        self.shapes.update({node: _traced_shape(node) for node in nodes})

    def as_traced(self, node: fx.Node, value: torch.Tensor, sizes: dict[Any, int]) -> None:
        """Raise RuntimeError if a result has not the shape that tracing took for granted.

        Where tracing cannot know, it takes lengths for neither 1 nor broadcast; Python numbers taken from such a shape
        would be wrong. ``sizes`` are the symbols seen in this iteration.
        """
        traced = self.shapes[node]
        if traced is None:
            return
        fits = value.dim() == len(traced)
        for have, want in zip(value.shape, traced, strict=False):
            fits = fits and (want is None or have == (want if isinstance(want, int) else sizes.setdefault(want, have)))
        if not fits:
            raise RuntimeError(
                f"packpass: at {location_of_node(node) or node.name} a loop over documents met a tensor of shape "
                f"{tuple(value.shape)} that was traced as {traced}; a document of one token was probably broadcast. "
                'options={"packpass.symbolic_loops": False} compiles the model without capturing such loops'
            )

    def value(self, arg: Any, env: dict[fx.Node, Any]) -> Any:
        return fx.node.map_arg(arg, env.__getitem__)

    def call(self, node: fx.Node, env: dict[fx.Node, Any], splits: dict[fx.Node, Any]) -> Any:
        args, kwargs = self.value(node.args, env), self.value(node.kwargs, env)
        if isinstance(node.target, torch._ops.OpOverload) and node.target in markers.SHADOWS:
            result = markers.SHADOWS[node.target](*args)
            if node.target is markers.CHUNK and (len(result) != args[1] or args[0].shape[args[2]] % args[1]):
                raise RuntimeError(f"packpass: {args[0].shape[args[2]]} slots are not {args[1]} equal parts")
            return result
        if node.target is markers.SPLIT_GET:
            x, lengths, index, dim = args
            if node not in splits:
                splits[node] = torch.split(x, lengths.tolist(), dim)
            return splits[node][index]
        if node.target is markers.SEGMENT:
            x, boundaries, index, dim = args
            start, stop = boundaries[index : index + 2].tolist()
            return x.narrow(dim, start, stop - start)
        if node.target is markers.MASKED:
            return args[0][args[1]]
        if node.target is markers.MASKED_PUT:
            args[0][args[1]] = args[2]
            return None
        if node.target is markers.LOOP_CHECK:
            if not args[0]:
                raise AssertionError(args[1])
            return None
        if node.target is markers.LIST_GET:
            return args[0][args[1]]
        # Not ``alone``, or one that may be ``empty``.
        if node.target is markers.RAGGED_CAT and not args[0] and args[2:] in ((False,), (True, True)):
            return _none_of(node)
        if node.target in (markers.RAGGED_CAT, markers.LIST_JOIN):
            return torch.cat(args[0], args[1])
        if node.target is markers.LIST_STACK:  # of none for a sum, say: a program that stacks them has asserted one
            return torch.stack(args[0], args[1]) if args[0] else _none_of(node)
        if node.target is markers.LIST_DIAGONAL:
            return torch.block_diag(*args[0])
        if node.target is markers.LIST_BOUNDARIES:
            lengths = [part.shape[args[2] if len(args) > 2 else 0] for part in args[0]]
            return torch.tensor([0, *lengths], device=node.meta["example_value"].device).cumsum(0)
        if node.target is markers.LIST_PAD:
            return pad_sequence(args[0], args[2], args[3], args[4])
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "call_module":
            return self.part.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.part)
        return node.target(*args, **kwargs)  # type: ignore[operator]
