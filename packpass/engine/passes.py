"""The only importer of the top-level package ``passes``.

The name is short and a user may have a module of the same name earlier on ``sys.path``; then importing ours would
silently give theirs, so we look and say which file is in the way.
"""

from __future__ import annotations

from types import ModuleType


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
