"""One way to run a model (eager, stock torch.compile, packpass): run it once, check it, count what it does.

:mod:`packpass.measuring.compare` puts several of them side by side; ``perf/`` uses the same pieces.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from packpass import _compat
from packpass.engine.explain import new_graph_breaks
from packpass.measuring.measure import Profile, Timing, profile, same_randomness
from packpass.measuring.trees import Difference, clone_tree, difference, map_tensors, tensors, worse


@dataclasses.dataclass(frozen=True)
class CodeCount:
    """Calls in Inductor's generated wrappers: kernels it wrote, ready-made ops by name, reads of device values."""

    kernels: int = 0
    externs: tuple[str, ...] = ()
    host_syncs: int = 0


_STRINGS = re.compile(r"'''.*?'''|\"\"\".*?\"\"\"", re.DOTALL)
_KERNEL_CALL = re.compile(r"^\s+(?:\w+ = )?(?:cpp_fused\w*|cpp_\w*|triton_\w+)(?:\.run)?\(", re.MULTILINE)
_EXTERN_CALL = re.compile(
    r"^\s+(?:[\w\[\], ]+ = )?((?:extern_kernels|aten|torch\.ops\.(?!inductor\.|_c10d_functional\.wait)\w+)[\w.]*)\(",
    re.MULTILINE,
)
_HOST_SYNC = re.compile(r"\.item\(\)|\.tolist\(\)|_local_scalar_dense|\baten\.nonzero\b")


def count_code(sources: Sequence[str]) -> CodeCount:
    """Count calls in generated wrappers (see :func:`packpass._compat.generated_code`); kernel bodies are left out."""
    bodies = [_STRINGS.sub("''", source) for source in sources]
    return CodeCount(
        kernels=sum(len(_KERNEL_CALL.findall(body)) for body in bodies),
        externs=tuple(name for body in bodies for name in _EXTERN_CALL.findall(body)),
        host_syncs=sum(len(_HOST_SYNC.findall(body)) for body in bodies),
    )


@dataclasses.dataclass
class Row:
    """What was found out about one variant. ``error`` is set where it raised; then the rest may be missing.

    ``first_call`` is in seconds and includes compiling; ``timing`` is missing where results are wrong.
    """

    name: str
    error: str | None = None
    difference: Difference | None = None
    first_call: float | None = None
    graphs: int | None = None
    graph_break_reasons: list[str] | None = None
    code: CodeCount | None = None
    profile: Profile | None = None
    timing: Timing | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and self.difference is not None and self.difference.close

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "ok": self.ok}


class Workload:
    """A model's call with fixed arguments, run the same way by every variant: forward, and backward where something
    requires a gradient.

    Arguments are copied before they are used. ``model`` is only looked at for parameters and buffers.
    """

    def __init__(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], backward: bool | None = None) -> None:
        self.module = _module_of(model)
        self._arguments = clone_tree((args, kwargs))
        named = self.module.named_parameters() if self.module is not None else ()
        self.parameters = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        inputs = [t for _, t in tensors(self._arguments) if t.requires_grad]
        wanted = torch.is_grad_enabled() and bool(self.parameters or inputs)
        self.backward = wanted if backward is None else backward
        self._cotangents: list[torch.Tensor] | None = None

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A fresh copy of the arguments."""
        return clone_tree(self._arguments)

    def step(self, call: Callable[..., Any], arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[Any, Any]:
        """One forward (and backward): ``(result, gradients of inputs and parameters or None)``."""
        args, kwargs = arguments
        result = call(*args, **kwargs)
        if not self.backward:
            return result, None
        outputs = [t for _, t in tensors(result) if t.requires_grad]
        if not outputs:
            return result, None
        if self._cotangents is None:
            with same_randomness(1):
                self._cotangents = [torch.randn_like(t) for t in outputs]
        inputs = [(path, t) for path, t in tensors(arguments) if t.requires_grad and t.is_leaf]
        wanted = [*inputs, *self.parameters]
        found = torch.autograd.grad(outputs, [t for _, t in wanted], self._cotangents, allow_unused=True)
        return result, {name: gradient for (name, _), gradient in zip(wanted, found, strict=True)}

    def observe(self, call: Callable[..., Any]) -> dict[str, Any]:
        """Run once from a fixed state; everything a caller could see afterwards. The module's state is put back."""
        arguments = self.arguments()
        with self.same_state(), same_randomness():
            result, gradients = self.step(call, arguments)
            seen = {"result": result, "gradients": gradients, "arguments": arguments, "state": self._state()}
            return {key: _detached(value) for key, value in seen.items()}

    @contextlib.contextmanager
    def same_state(self) -> Iterator[None]:
        """Put the module's parameters and buffers back at the end of the block."""
        saved = self._state()
        try:
            yield
        finally:
            if self.module is not None:
                with torch.no_grad():
                    for name, tensor in _named_state(self.module):
                        if name in saved and not torch.equal(tensor, saved[name]):
                            tensor.copy_(saved[name])

    def _state(self) -> dict[str, torch.Tensor]:
        return {name: t.detach().clone() for name, t in _named_state(self.module)} if self.module is not None else {}

    def changes_arguments(self, seen: Mapping[str, Any]) -> bool:
        return not difference(_detached(self._arguments), seen["arguments"]).equal


def examine(name: str, workload: Workload, call: Callable[..., Any], expected: Mapping[str, Any] | None = None) -> Row:
    """The row of something that no compiler touches; without ``expected`` it is itself the reference.

    An exception becomes ``row.error``.
    """
    row = Row(name)
    with _errors_into(row):
        started = time.perf_counter()
        seen = workload.observe(call)
        row.first_call = time.perf_counter() - started
        row.difference = Difference() if expected is None else difference(expected, seen)
        row.profile = _profiled(workload, call, eager=True)
    return row


def examine_compiled(
    name: str, workload: Workload, make: Callable[[], Callable[..., Any]], expected: Mapping[str, Any], reference: Row
) -> tuple[Row, Callable[..., Any] | None]:
    """Compile (``make``), call for the first time in empty caches, check two runs against ``expected``, count.

    Returns the row and the compiled callable. An exception becomes ``row.error``.
    """
    row, call = Row(name), None
    stats, breaks = _compat.dynamo_counters("stats"), dict(_compat.dynamo_counters("graph_break"))
    graphs = stats["unique_graphs"]
    with _errors_into(row), _compat.empty_compile_caches(), _compat.generated_code() as sources:
        call = make()
        started = time.perf_counter()
        seen = workload.observe(call)
        row.first_call = time.perf_counter() - started
        row.graphs, row.graph_break_reasons = stats["unique_graphs"] - graphs, new_graph_breaks(breaks)
        row.code = count_code(sources)
        row.difference = worse(difference(expected, seen), difference(expected, workload.observe(call)))
        row.profile = _profiled(workload, call, eager=False)
        if row.graphs == 0 and reference.profile is not None:
            # Nothing was compiled, so this ran eagerly; only the eager count sees reads such as tolist().
            row.profile = dataclasses.replace(row.profile, host_syncs=reference.profile.host_syncs)
    return row, call


def _profiled(workload: Workload, call: Callable[..., Any], *, eager: bool) -> Profile:
    arguments = workload.arguments()
    with workload.same_state(), same_randomness():
        return profile(lambda: workload.step(call, arguments), eager=eager)


@contextlib.contextmanager
def _errors_into(row: Row) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        row.error = first_line(error)


def first_line(error: BaseException) -> str:
    """``Type: the first line that says something``, at most 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def _module_of(model: Any) -> torch.nn.Module | None:
    owner = getattr(model, "__self__", model)
    return owner if isinstance(owner, torch.nn.Module) else None


def _named_state(module: torch.nn.Module | None) -> list[tuple[str, torch.Tensor]]:
    return [] if module is None else [*module.named_parameters(), *module.named_buffers()]


def _detached(tree: Any) -> Any:
    return map_tensors(tree, lambda tensor: tensor.detach())
