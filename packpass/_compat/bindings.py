"""Names of sizes that calls make up."""

from __future__ import annotations

from typing import Any

from packpass._compat.symbolic import free_unbacked_symbols


def bindings_of(value: Any, known: Any) -> dict[Any, Any]:
    """Data-dependent symbols that a call made -> where in its result they are (``meta["unbacked_bindings"]`` of its
    node): by this, code that traces the graph again knows the sizes that it makes up by the names they have already.

    ``known``: symbols that there were before. Only sizes that are such a symbol, of a tensor or a number itself."""
    import torch
    from torch.fx.experimental.symbolic_shapes import CallMethodKey
    from torch.utils._pytree import SequenceKey

    sizes: list[tuple[Any, tuple[Any, ...]]] = []
    if isinstance(value, torch.Tensor):
        sizes = [(size, (CallMethodKey("size"), SequenceKey(d))) for d, size in enumerate(value.shape)]
    elif isinstance(value, torch.SymInt):
        sizes = [(value, ())]
    found: dict[Any, Any] = {}
    for size, path in sizes:
        symbol = size.node.expr if isinstance(size, torch.SymInt) else None
        if symbol is not None and symbol.is_Symbol and symbol not in known and free_unbacked_symbols(size):
            found.setdefault(symbol, path)
    return found
