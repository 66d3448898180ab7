"""What autocast makes of a call, as casts of its operands.

Nobody but torch knows which operations autocast runs in which dtype. So torch is asked: the call is traced on fake
tensors below autocast, and once more without it, on operands that are cast beforehand. If both run the same
operations, the casts are all that autocast does to the call. Sizes that are unknown are unknown here, too, so that this
holds for every size. ::

    casts(node, ("cpu", torch.bfloat16, True, True))    # x @ w of float32: {x: torch.bfloat16, w: torch.bfloat16}
    ...                                                 # torch.cos(x): {}
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import fx

from packpass._compat import aten_graph, sizes_of_nobody
from packpass.semantics.call import as_function
from packpass.semantics.effects import changes_mode
from packpass.semantics.registry import family_of
from packpass.semantics.sizes import Renamed

log = logging.getLogger("packpass.semantics.autocast")

_CASTS = (torch.ops.aten._to_copy.default,)
_MOVING = ("views", "indexing")
"""Families of operations that move numbers, which no autocast casts."""


def casts(node: fx.Node, region: tuple[Any, ...]) -> dict[fx.Node, torch.dtype] | None:
    """The dtype that each operand of a call is cast to under autocast, if that is all; None if it is more than that.

    Args:
        node: a call, whose operands have fake values; autocast is off around it, but for ``region``.
        region: arguments of the autocast region: device type, dtype, enabled, cache.
    """
    device, dtype, enabled, _ = region
    operands = list(dict.fromkeys(node.all_input_nodes))
    values = [operand.meta.get("example_value") for operand in operands]
    floating = [v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point() and v.device.type == device]
    if not enabled or not floating or family_of(node) in _MOVING or changes_mode(node):
        return None if changes_mode(node) else {}
    try:
        inside, outside, found = _both(node, operands, values, (device, dtype))
    except Exception as error:  # whatever torch's definitions raise where they ask for sizes: no common class
        log.debug("what autocast makes of %s is not known: %s", node.target, str(error).split("\n")[0])
        return None
    return found if inside == outside else None


def _both(
    node: fx.Node, operands: list[fx.Node], values: list[Any], region: tuple[str, Any]
) -> tuple[list[Any], list[Any], dict[fx.Node, torch.dtype]]:
    """What the call runs under autocast (without the casts of its operands), what it runs on cast operands without,
    and these casts."""

    run = as_function(node, operands)

    def under(*given: Any) -> Any:
        with torch.autocast(region[0], dtype=region[1], cache_enabled=False):
            return run(*given)

    def plain(*given: Any) -> Any:
        with torch.autocast(region[0], enabled=False):
            return run(*given)

    with sizes_of_nobody() as (_, size):
        fresh = Renamed(size, grads=True)
        given = [fresh.operand(value) for value in values]
        first = aten_graph(under, given, {})[0].graph
        wanted, absorbed = _operand_casts(first)
        second = aten_graph(plain, [_cast(g, d) for g, d in zip(given, wanted, strict=True)], {})[0].graph
    found = {operand: dtype for operand, dtype in zip(operands, wanted, strict=True) if dtype is not None}
    return _calls(first, absorbed), _calls(second, set()), found


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    """An operand that has been cast already, and needs the gradient that it did."""
    return value if dtype is None else value.detach().to(dtype).requires_grad_(value.requires_grad)


def _operand_casts(graph: fx.Graph) -> tuple[list[torch.dtype | None], set[fx.Node]]:
    """Of each placeholder, the dtype that it is cast to wherever it is used, None if it is used as it is; and these
    casts. What only moves numbers may stand in front of a cast as well as behind it."""
    found: list[torch.dtype | None] = []
    absorbed: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "placeholder":
            continue
        dtypes, ends, stack = set[Any](), set[fx.Node](), [node]
        while stack:
            for user in stack.pop().users:
                if _cast_to(user) is not None:
                    ends.add(user)
                    dtypes.add(_cast_to(user))
                elif isinstance(user.meta.get("val"), torch.Tensor) and family_of(user) in _MOVING:
                    stack.append(user)
                elif isinstance(user.meta.get("val"), torch.Tensor) or user.op == "output":
                    dtypes.add(None)
        found.append(dtypes.pop() if len(dtypes) == 1 else None)
        absorbed |= ends if found[-1] is not None else set()
    return found, absorbed


def _cast_to(node: fx.Node) -> torch.dtype | None:
    """The dtype, if a call casts a tensor and does nothing else."""
    plain = node.target in _CASTS and len(node.args) == 1 and set(node.kwargs) == {"dtype"}
    dtype: Any = node.kwargs["dtype"] if plain else None
    return dtype


def _calls(graph: fx.Graph, absorbed: set[fx.Node]) -> list[Any]:
    """The calls in order, each with its operands by their numbers; a cast that is ``absorbed`` is what it casts."""
    numbers: dict[fx.Node, int] = {}
    made: list[Any] = []
    for node in graph.nodes:
        if node in absorbed:
            numbers[node] = numbers[node.args[0]]
            continue
        numbers[node] = len(made)
        args = fx.map_arg((node.args, dict(node.kwargs)), lambda n: ("node", numbers[n]))
        made.append(node.op if node.op == "placeholder" else (node.target, repr(args)))
    return made
