"""Rules for the calls that move, cut, join, choose or overwrite slots, by the call's plain name.

A rule is ``rule(interpreter, node) -> View | Uniform | True | None``: the value of the node, True if the call was
understood but has no value of interest, None if it is to be taken for a call like any other (a use of its inputs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from packpass._registry import registrar

Rule = Callable[[Any, fx.Node], Any]
STRUCTURAL: dict[str, Rule] = {}


rule = registrar(STRUCTURAL)
"""Registers a rule under plain op names."""
