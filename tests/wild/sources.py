"""Import single source files of packages whose ``__init__`` wants servers, GPUs or other versions of torch.

The files themselves are loaded as they are. What stands in for the rest is never called by what is tested: a package
whose ``__init__`` is skipped (`bare`), and third-party packages that are not installed (`lenient`).
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from typing import Any

from tests.wild import packages


def use(name: str) -> str:
    """Put the package's folder first on ``sys.path``; its path."""
    path = str(packages.folder(packages.pin_of(name)))
    sys.path.insert(0, path)
    return path


def bare(root: str, *names: str) -> None:
    """Register ``names`` (dotted, parents first) as packages under ``root`` without running their ``__init__``."""
    for name in names:
        path = f"{root}/{name.replace('.', '/')}"
        module = _module(name, [path])
        module.__file__ = f"{path}/__init__.py"
        module.__version__ = "0"


def _module(name: str, path: list[str]) -> Any:
    module: Any = types.ModuleType(name)
    module.__path__ = path
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__spec__.submodule_search_locations = path
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)
    return module


class _AnyClass(type):
    """A class that has every attribute, for annotations, base classes and decorators at import time."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (_Anything,), {})

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __or__(cls, other: Any) -> Any:
        return other

    __ror__ = __or__

    def __getitem__(cls, item: Any) -> Any:
        return cls


class _Anything(metaclass=_AnyClass):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


def _missing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _AnyClass(name, (_Anything,), {})


def lenient(name: str) -> Any:
    """Import ``name``; what is not installed gets stand-ins, names that a skipped ``__init__`` defines as well."""
    for _ in range(100):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name == name or error.name in sys.modules:
                raise
            stand_in(error.name)
        except ImportError as error:
            module: Any = sys.modules.get(error.name or "")
            if module is None or "__getattr__" in vars(module):
                raise
            module.__getattr__ = _missing
    raise ImportError(f"{name} misses more than 100 packages")


def stand_in(name: str) -> None:
    """Something that can be imported by this name and is never called."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        here = ".".join(parts[:i])
        if here not in sys.modules:
            _module(here, []).__getattr__ = _missing
