"""The arguments of a model by the names that its signature gives them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch

from packpass.measuring.trees import leaves
from packpass.probing.tokens import Input


def inputs_of(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Input]:
    """Every tensor argument, also inside lists, dicts and dataclasses."""
    target = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        positional = [
            p.name
            for p in inspect.signature(target).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        positional = []
    return list(_inputs(args, kwargs, positional))


def _inputs(args: tuple[Any, ...], kwargs: dict[str, Any], positional: list[str]) -> Iterator[Input]:
    for path, value in leaves((args, kwargs)):
        if not isinstance(value, torch.Tensor):
            continue
        first = re.match(r"\[0\]\[(\d+)\](.*)", path)
        if first is not None:
            place = int(first[1])
            top = positional[place] if place < len(positional) else f"argument {place}"
            name = top + first[2]
        else:
            name = re.sub(r"^\[1\]\['([^']*)'\]", r"\1", path)
        yield Input(name, path, value)
