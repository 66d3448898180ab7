"""Tables of small functions by op name, as layout and passes keep them: adding an op is adding a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def registrar(table: dict[Any, F]) -> Callable[..., Callable[[F], F]]:
    """The decorator ``@rule("name", ...)`` that enters a function into ``table``; a name has one function."""

    def rule(*names: Any) -> Callable[[F], F]:
        def register(fn: F) -> F:
            for name in names:
                assert name not in table, name
                table[name] = fn
            return fn

        return register

    return rule
