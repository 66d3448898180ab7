"""Names of what a graph calls: torch's own functions by what they are, never by what they are called."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from packpass.layout.names import function_name

OWN: list[tuple[Any, str]] = [
    (torch.clone, "clone"),
    (torch.concat, "concat"),
    (F.softmax, "softmax"),
    (F.gelu, "gelu"),
    (F.logsigmoid, "log_sigmoid"),
    (torch.linalg.vector_norm, "linalg_vector_norm"),
    (torch.einsum, "einsum"),
    (F.max_pool1d, "max_pool1d"),
    (operator.getitem, "getitem"),
    (math.sqrt, "sqrt"),
    (getattr, "getattr"),
    (torch.sym_sum, "sym_sum"),
    (torch._C._set_grad_enabled, "_set_grad_enabled"),
    (torch.ops.aten.clone.default, "clone"),
    (torch.ops.aten.clone, "clone"),
    ("clone", "clone"),
]


@pytest.mark.parametrize(("target", "name"), OWN, ids=[f"{name}-{i}" for i, (_, name) in enumerate(OWN)])
def test_own(target: Any, name: str) -> None:
    assert function_name(target) == name


def clone(x: Tensor) -> Tensor:
    return x * 2


@functools.wraps(torch.nn.functional.softmax)
def softmax(x: Tensor) -> Tensor:
    return x * 2


def of_a_module(name: str) -> Callable[[Tensor], Tensor]:
    """A function of another package."""

    def zeros(x: Tensor) -> Tensor:
        return x + 5

    zeros.__module__ = name
    return zeros


OTHERS = [
    clone,
    softmax,
    of_a_module("torchtune.modules"),
    of_a_module("torch"),
    of_a_module("mathutils"),
    clone.__call__,
]


@pytest.mark.parametrize("target", OTHERS)
def test_others_have_no_name(target: Any) -> None:
    assert function_name(target) == ""


def test_operators_of_others_keep_their_namespace() -> None:
    """Dynamo puts down the packet of overloads for ``torch.ops.x.clone(y)``; its own name is just ``clone``."""
    library = torch.library.Library("packpass_test_names", "DEF")
    try:
        library.define("clone(Tensor x) -> Tensor")
        packet = torch.ops.packpass_test_names.clone
        assert function_name(packet) == function_name(packet.default) == "packpass_test_names::clone"
    finally:
        library._destroy()
