"""What torch.compile does here without packpass, for tests of programs that some torch cannot trace by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.matrix.cells import REFERENCE

OTHER_WORDS: dict[str, set[str]] = {
    "outer-iterator": {"body-not-traceable"},
    "outer-mutation": {"list-use"},
    "frame-not-compiled": {"graph-break"},
}
"""Refusals that it comes to instead where Dynamo raises an error of its own earlier (torch 2.11; README names them)."""


def everyday_torch() -> bool:
    """Is this the release that all others are compared with?"""
    return torch.__version__.partition("+")[0] == REFERENCE.torch


def codes(code: str) -> set[str]:
    """The refusal that a program has to meet, and what it may be called elsewhere."""
    return {code, *OTHER_WORDS.get(code, ())}


def is_one_node(fn: Callable[..., Any], *args: Any) -> bool:
    """Does Dynamo write a call of this function as it is, instead of the ops that it runs?"""
    found: list[bool] = []

    def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
        found.append(any(node.target is fn for node in gm.graph.nodes))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(lambda: fn(*args), backend=backend)()
    torch._dynamo.reset()
    return any(found)


def traced(fn: Callable[..., Any], *args: Any) -> bool:
    """Does torch.compile trace the call as one graph?"""
    torch._dynamo.reset()
    try:
        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            torch.compile(fn, backend="eager", fullgraph=True)(*args)
    except Exception:
        return False
    finally:
        torch._dynamo.reset()
    return True
