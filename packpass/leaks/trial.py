"""Runs of the model under equal circumstances: the same random numbers, the same buffers, no compiler of the user's."""

from __future__ import annotations

import contextlib
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from packpass.measuring.measure import same_randomness
from packpass.measuring.trees import clone_tree, leaves, map_tensors

Tree = tuple[tuple[Any, ...], dict[str, Any]]


class Progress:
    """A bar on standard error for work of more than a few seconds, where somebody looks."""

    def __init__(self, on: bool | None) -> None:
        self._on = sys.stderr.isatty() if on is None else on
        self._quiet_until = time.monotonic() + (2.0 if on is None else 0.0)
        self._shown = False

    def step(self, done: int, total: int, text: str) -> None:
        """``done`` of ``total`` steps are done, and this is the next."""
        if self._on and time.monotonic() >= self._quiet_until:
            filled = 24 * done // max(total, 1)
            bar = "#" * filled + "." * (24 - filled)
            print(f"\r  [{bar}] {done}/{total} {text[:40]:40}", end="", file=sys.stderr, flush=True)
            self._shown = True

    def end(self) -> None:
        """Leave the line empty."""
        if self._shown:
            print("\r" + " " * 80 + "\r", end="", file=sys.stderr, flush=True)
            self._shown = False


class Trial:
    """A model and its arguments, to be run again and again.

    Args:
        model: without any compiler. call: what is run: the model, or what was compiled of it.
        tree: the arguments, which are copied for every run.
        eager: whether parts that the user compiled run without their compiler.
    """

    def __init__(self, model: Any, call: Callable[..., Any], tree: Tree, eager: bool) -> None:
        self.modules = _modules_of(model)
        self.call, self.tree, self.eager, self.runs = call, map_tensors(clone_tree(tree), _to_write), eager, 0
        self.draws = False
        self.state_after: torch.Tensor | None = None

    @contextlib.contextmanager
    def circumstances(self) -> Iterator[None]:
        """What every run finds, and leaves behind."""
        buffers = [buffer for module in self.modules for buffer in module.buffers()]
        saved = [buffer.detach().clone() for buffer in buffers]
        with contextlib.ExitStack() as stack:
            if self.eager:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(same_randomness(7))
            before = torch.get_rng_state()
            try:
                yield
            finally:
                self.runs += 1
                self.state_after = torch.get_rng_state()
                self.draws = self.draws or not torch.equal(before, self.state_after)
                with torch.no_grad():
                    for buffer, value in zip(buffers, saved, strict=True):
                        if not torch.equal(buffer, value):
                            buffer.copy_(value)

    def run(self, tree: Tree | None = None) -> dict[str, Any]:
        """The outputs by path, of these arguments or of the trial's own, without gradients."""
        args, kwargs = clone_tree(self.tree if tree is None else tree)
        with self.circumstances(), torch.no_grad():
            return outputs_of(self.call(*args, **kwargs))


def _to_write(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose elements can be written one by one: an expanded one has several of them at one place."""
    spread = tensor.layout is torch.strided and any(
        size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.detach().contiguous().requires_grad_(tensor.requires_grad) if spread else tensor


def _modules_of(model: Any) -> list[torch.nn.Module]:
    """The module that is run, or those that a function names."""
    owner = getattr(model, "__self__", model)
    if isinstance(owner, torch.nn.Module):
        return [owner]
    try:
        named = inspect.getclosurevars(inspect.unwrap(model))
    except (TypeError, ValueError):
        return []
    values = {id(v): v for v in (*named.nonlocals.values(), *named.globals.values())}
    return [value for value in values.values() if isinstance(value, torch.nn.Module)]


def outputs_of(result: Any) -> dict[str, Any]:
    """Everything in a result that is not a container, by path. Of jagged tensors the row that they are made of."""
    found = {path or "output": value for path, value in leaves(result)}
    jagged = [path for path, value in found.items() if isinstance(value, torch.Tensor) and value.is_nested]
    for path in [path for path in jagged if found[path].layout is torch.jagged]:
        found[path + ".values()"] = found.pop(path).values()
    return found
