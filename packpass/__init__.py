"""packpass: compiler passes for packed (THD) sequences.

``torch.compile(model, backend=packpass.backend)`` finds loops over ``cu_seqlens`` and boundary-blind shifts in
unmodified model code and rewrites them into packed ops that Inductor turns into one kernel.

Importing this package does not import torch: ``TORCH_LOGS=+packpass`` makes torch import us while it is itself still
being imported, so every attribute is resolved on first use (PEP 562).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from packpass import ops as ops
    from packpass import testing as testing
    from packpass._options import Options as Options
    from packpass._packed import packed as packed
    from packpass.decisions.records import Refusal as Refusal
    from packpass.decisions.records import Rewrite as Rewrite
    from packpass.engine.backend import backend as backend
    from packpass.engine.compile import compile as compile
    from packpass.engine.explain import explain as explain
    from packpass.engine.versions import CompatibilityWarning as CompatibilityWarning
    from packpass.leaks.audit import audit as audit
    from packpass.leaks.records import Audit as Audit
    from packpass.leaks.records import Leak as Leak
    from packpass.measuring.compare import compare as compare
    from packpass.measuring.links import measure_group as measure_group
    from packpass.ops import PackedBatch as PackedBatch
    from packpass.reports.report import Report as Report

# public name -> module that defines it. Private module names differ from public ones, so that importing a module can
# never replace the public object of the same name on the package.
_LAZY: dict[str, str] = {
    "audit": "packpass.leaks.audit",
    "backend": "packpass.engine.backend",
    "compare": "packpass.measuring.compare",
    "compile": "packpass.engine.compile",
    "explain": "packpass.engine.explain",
    "measure_group": "packpass.measuring.links",
    "Audit": "packpass.leaks.records",
    "CompatibilityWarning": "packpass.engine.versions",
    "Leak": "packpass.leaks.records",
    "Options": "packpass._options",
    "packed": "packpass._packed",
    "PackedBatch": "packpass.ops",
    "Refusal": "packpass.decisions.records",
    "Report": "packpass.reports.report",
    "Rewrite": "packpass.decisions.records",
}

_MODULES = ("ops", "testing")

__all__ = [
    "__version__",
    "audit",
    "backend",
    "compare",
    "compile",
    "explain",
    "measure_group",
    "ops",
    "packed",
    "testing",
    "Audit",
    "Leak",
    "Options",
    "PackedBatch",
    "Refusal",
    "Report",
    "Rewrite",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"packpass.{name}")
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'packpass' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
