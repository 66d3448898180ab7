"""Differentiable collectives of ``torch.distributed.nn.functional`` that newer torch refuses to trace.

From torch 2.13 on, ``all_to_all_single`` of that module raises where it is compiled, which breaks the graph. Nothing
but that refusal stands in the way: what it calls afterwards is an ``autograd.Function`` that Dynamo traces, and that
the passes prove like any other.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from packpass.capture.dynamo import call, constant

_PARAMETERS = ("output", "input", "output_split_sizes", "input_split_sizes", "group")


def call_function(tx: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The call without the refusal; None if it is something else, or a call that raises in eager as well."""
    replacement = _functions().get(function)
    if replacement is None or len(args) > len(_PARAMETERS) or set(kwargs) - set(_PARAMETERS[len(args) :]):
        return None
    given = dict(zip(_PARAMETERS, args, strict=False)) | kwargs
    if not {"output", "input"} <= set(given):
        return None
    return call(tx, replacement, *(given.get(name, constant(None)) for name in _PARAMETERS))


@functools.cache
def _functions() -> dict[Any, Callable[..., Any]]:
    """What is refused by this torch; empty where it traces."""
    if not torch.distributed.is_available():
        return {}
    module: Any = importlib.import_module("torch.distributed.nn.functional")
    refuses = hasattr(module, "_not_supported_under_compile") and hasattr(module, "_AlltoAllSingle")
    return {module.all_to_all_single: _all_to_all_single} if refuses else {}


def _all_to_all_single(output: Any, input: Any, received: Any, sent: Any, group: Any) -> Any:
    # Dynamo traces an autograd.Function that it finds by its names, from a global on.
    functions: Any = torch.distributed.nn.functional  # type: ignore[attr-defined]
    return functions._AlltoAllSingle.apply(group, output, received, sent, input)
