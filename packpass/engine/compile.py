"""``packpass.compile``: ``torch.compile`` with the packpass backend, on functions, methods, module classes and
modules."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from packpass._options import Options

T = TypeVar("T")


@overload
def compile(model: T, /, **kwargs: Any) -> T: ...
@overload
def compile(model: None = None, /, **kwargs: Any) -> Callable[[T], T]: ...
def compile(model: Any = None, /, **kwargs: Any) -> Any:
    """Compile with packpass: ``torch.compile(..., backend=packpass.backend)`` as a function or a decorator.

    Works bare (``@packpass.compile``) and with the keywords of ``torch.compile`` (``fullgraph``, ``dynamic``, ``mode``,
    ``options`` ...), on

    * a function, or a method in a class body (``forward``): the compiled function still binds to ``self``;
    * an ``nn.Module`` class: the class itself is returned with its ``forward`` compiled, so that ``isinstance``,
    pickling,
      subclassing and the class's name stay what they were. A subclass that overrides ``forward`` compiles only what it
      reaches through ``super().forward``;
    * an ``nn.Module`` instance or any other callable: what ``torch.compile`` returns for it.

    Raises ``TypeError`` for ``backend=`` and for something that cannot be called, ``ValueError`` for unknown
    ``packpass.*`` options (at once, not at the first call).
    """
    check_keywords("packpass.compile", kwargs)
    if model is None:
        return functools.partial(_compile_one, kwargs=kwargs)
    return _compile_one(model, kwargs=kwargs)


def check_keywords(function: str, kwargs: Mapping[str, Any]) -> None:
    """Reject ``backend=`` and bad options before anything is compiled; ``function`` is named in the error."""
    if "backend" in kwargs:
        raise TypeError(
            f"{function}() always uses packpass.backend, so it takes no backend= (got {kwargs['backend']!r}). "
            "For another backend call torch.compile; to choose who compiles what packpass rewrote, pass "
            'options={"packpass.inner_backend": "inductor" | "aot_eager" | "eager"}'
        )
    Options.from_dict(kwargs.get("options"))


def _compile_one(model: Any, *, kwargs: Mapping[str, Any]) -> Any:
    if isinstance(model, (staticmethod, classmethod)):
        return type(model)(_compile_one(model.__func__, kwargs=kwargs))
    if inspect.isclass(model):
        return _compile_class(model, kwargs)
    if not callable(model):
        raise TypeError(
            f"packpass.compile takes a function, a method, an nn.Module class or a module, got {type(model).__name__}: "
            f"{model!r}"
        )
    import torch

    from packpass.engine.backend import backend

    return torch.compile(model, backend=backend, **_own_options(kwargs))


def _compile_class(cls: type, kwargs: Mapping[str, Any]) -> type:
    import torch

    if not issubclass(cls, torch.nn.Module):
        raise TypeError(
            f"packpass.compile takes nn.Module classes, got the class {cls.__qualname__}; decorate its method instead"
        )
    if cls.forward is torch.nn.Module.forward:
        raise TypeError(f"packpass.compile: the class {cls.__qualname__} defines no forward to compile")
    # Assigned on the class, not on instances: unpickled and deep-copied instances are compiled too, and nothing that
    # cannot be pickled is stored in them.
    cls.forward = _compile_one(cls.forward, kwargs=kwargs)
    return cls


def uncompiled(model: Any) -> Any:
    """The callable behind a ``torch.compile`` wrapper, or ``model`` itself."""
    for attribute in _WRAPPED:
        inner = getattr(model, attribute, None)
        if inner is not None:
            return inner
    return model


def is_compiled(model: Any) -> bool:
    """Whether ``model`` is a ``torch.compile`` wrapper."""
    return any(getattr(model, attribute, None) is not None for attribute in _WRAPPED)


_WRAPPED = ("_orig_mod", "_torchdynamo_orig_callable")


def fresh_copy(model: Any) -> Any:
    """The same callable on a code object of its own.

    Dynamo keeps compiled code, and the verdict "never compile this frame", per code object and for all backends: after
    stock ``torch.compile`` gave up on a loop, no other backend is ever asked again. A copied code object starts clean
    and leaves the original's state alone. A module becomes its bound ``forward`` unless hooks need its ``__call__``.
    """
    import torch

    model = uncompiled(model)
    if isinstance(model, torch.nn.Module):
        forward = uncompiled(model.forward)
        if any(getattr(model, name, None) for name in _HOOKS) or not hasattr(
            getattr(forward, "__func__", forward), "__code__"
        ):
            return model
        if isinstance(forward, types.FunctionType) and "forward" not in vars(model):
            forward = types.MethodType(forward, model)  # a compiled forward of the class, unwrapped
        return fresh_copy(forward)
    if isinstance(model, types.MethodType):
        return types.MethodType(fresh_copy(model.__func__), model.__self__)
    if isinstance(model, types.FunctionType):
        copy = types.FunctionType(
            model.__code__.replace(), model.__globals__, model.__name__, model.__defaults__, model.__closure__
        )
        copy.__kwdefaults__ = model.__kwdefaults__
        return functools.update_wrapper(copy, model, updated=("__dict__",))
    return model


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def compile_afresh(model: Any, backend: Any, kwargs: Mapping[str, Any]) -> Any:
    """Compile apart from everything compiled before: ``backend`` must be equal to no other.

    Dynamo counts all compiled code of a code object against its recompile limit; where torch can isolate (2.13),
    what is compiled here is not counted against the user's.
    """
    import torch

    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        kwargs = {"isolate_recompiles": True, **kwargs}
    return torch.compile(fresh_copy(model), backend=backend, **_own_options(kwargs))


def _own_options(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """``kwargs`` with a copy of ``options``: torch.compile pops keys from the dict it is given."""
    return {key: dict(value) if key == "options" and value is not None else value for key, value in kwargs.items()}
