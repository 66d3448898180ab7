"""The program of one iteration as text: two iterations, or two ranks, run the same one exactly if the texts agree."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import AUTOGRAD_FUNCTION, example, op_name
from passes.document_loops.op_names import is_size_check
from passes.document_loops.terms import map_args


def steps(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes without integers and Dynamo's own assertions, of which one iteration may have more than another."""
    return [n for n in nodes if not _is_integer(n) and not is_size_check(n)]


def _is_integer(node: fx.Node) -> bool:
    return isinstance(example(node), (torch.SymInt, torch.SymBool, torch.SymFloat, int, bool))


def program(
    gm: fx.GraphModule, begin: fx.Node | None, nodes: Sequence[fx.Node], spelled_out: object = None,
    own: Mapping[fx.Node, Sequence[fx.Node]] = MappingProxyType({}),
) -> str:  # fmt: skip
    """A digest of the steps, their constants and how they depend on each other; no names, no sizes.

    Args:
        spelled_out: what else is known of the tensors of constants that they read.
        own: functions of which only these calls are the same on other ranks.
    """
    number: dict[fx.Node, str] = {} if begin is None else {begin: "index"}
    outside: dict[Any, str] = {}
    inside = set(nodes)
    lines = [f"{spelled_out}"] if spelled_out else []

    def name(arg: Any) -> Any:
        if not isinstance(arg, fx.Node):
            return arg
        if arg not in number and arg in inside and _is_integer(arg):
            number[arg] = text(arg)
        # Two sizes of rows that torch has found to be equal since are one number.
        size = example(arg)
        key = size.node.expr if isinstance(size, torch.SymInt) else arg
        return number.get(arg) or outside.setdefault(key, f"outside {len(outside)}")

    def text(node: fx.Node) -> str:
        # The last arguments of these markers number the loop and the iteration.
        given = node.args[:2] if node.target in (*markers.LOOP_SKIP, markers.LOOP_CHECK) else node.args
        args, kwargs = map_args(_in_order(node, given, name), name), map_args(dict(node.kwargs), name)
        target = "placeholder" if node.op == "placeholder" else _called(node.target)
        return f"({node.op} {target} {args} {sorted(kwargs.items())})"

    for i, node in enumerate(steps(nodes)):
        number[node] = f"%{i}"
        if node.op == "get_attr":
            value = getattr(gm, str(node.target), None)
            known = own.get(node, list(value.graph.nodes)) if isinstance(value, fx.GraphModule) else None
            lines.append("attribute" if known is None else program(value, None, known))  # type: ignore[arg-type]
            continue
        fake = example(node)
        kind = (fake.dtype, fake.dim()) if isinstance(fake, torch.Tensor) else type(fake).__name__
        lines.append(f"{text(node)} {kind}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _in_order(node: fx.Node, given: tuple[Any, ...], name: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The arguments of a call; Dynamo hands integers to an autograd.Function in an order that differs from one
    iteration to the next."""
    if op_name(node) != AUTOGRAD_FUNCTION:
        return given
    numbers = [a for a in given if isinstance(a, fx.Node) and _is_integer(a)]
    return (*sorted(numbers, key=lambda number: str(name(number))), *(a for a in given if a not in numbers))


def _called(target: Any) -> str:
    """A name that is the same in every process."""
    if isinstance(target, str):
        return target
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)):
        return str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', type(target).__name__)}"
