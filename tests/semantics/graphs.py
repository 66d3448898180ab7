"""Small graphs of single calls, with values, for tests of what the calls mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx


def node_of(
    call: Callable[..., Any], *args: Any, method: str | None = None, run: bool = True, **kwargs: Any
) -> fx.Node:
    """A node that calls a function (or the method of that name) on tensors, which become placeholders."""
    graph = fx.Graph()

    def leaf(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            place = graph.placeholder("x")  # one for each, so that they can be changed one by one
            place.meta["example_value"] = value
            return place
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            return type(value)(leaf(v) for v in value)
        return slice(leaf(value.start), leaf(value.stop), leaf(value.step)) if isinstance(value, slice) else value

    fx_args, fx_kwargs = tuple(leaf(a) for a in args), {k: leaf(v) for k, v in kwargs.items()}
    if method is not None:
        node = graph.call_method(method, fx_args, fx_kwargs)
    else:
        node = graph.call_function(call, fx_args, fx_kwargs)
    if run:
        node.meta["example_value"] = getattr(args[0], method)(*args[1:], **kwargs) if method else call(*args, **kwargs)
    return node


def method_node(name: str, *args: Any, **kwargs: Any) -> fx.Node:
    """A node that calls a method of its first argument."""
    return node_of(torch.add, *args, method=name, **kwargs)
