"""From the declarations in `packpass._passes` to their code; the only importer of the top-level package ``passes``.

The name is short and a user may have a module of the same name earlier on ``sys.path``; then importing ours would
silently give theirs, so we look and say which file is in the way.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from packpass import _passes
from packpass._options import Options
from packpass._passes import Pass, Stage


def load() -> ModuleType:
    """Our ``passes`` package. Raises ImportError naming the file that shadows it."""
    import passes

    if not getattr(passes, "PACKPASS", False):
        where = getattr(passes, "__file__", None) or ", ".join(getattr(passes, "__path__", [])) or "an unknown place"
        raise ImportError(
            f"packpass needs its package 'passes', but {where} has the same name and comes first on sys.path. "
            "Rename that folder or file, or start Python from another directory."
        )
    return passes


def load_all() -> None:
    """Import the code of every pass: an ImportError should come up now, not in the middle of a compile."""
    for p in _passes.PASSES:
        for code in filter(None, (p.entry, p.prepare, p.operations)):
            function(code)


def module_of(p: Pass) -> ModuleType:
    """Where a pass is written."""
    load()
    return importlib.import_module(p.module)


def function(code: str) -> Any:
    """What ``"module:function"`` names."""
    load()
    module, _, name = code.partition(":")
    return getattr(importlib.import_module(module), name)


def running(settings: Options, *stages: Stage) -> Iterator[Pass]:
    """The passes of these stages that the user wants, in order."""
    return (p for p in _passes.PASSES if p.stage in stages and settings.runs(p.name))


def operations() -> dict[str, frozenset[str]]:
    """The operations that each pass which interprets a graph has a rule for, by the pass."""
    return {p.name: function(p.operations)() for p in _passes.PASSES if p.operations}
