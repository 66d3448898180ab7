"""Runs of the model under equal circumstances: the same random numbers, the same buffers, no compiler of the user's."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from packpass.leaks.documents import EVERY, Documents, Hit, differing
from packpass.measuring.measure import same_randomness
from packpass.measuring.trees import clone_tree, leaves

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
        self.call, self.tree, self.eager, self.runs = call, clone_tree(tree), eager, 0
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
    """Everything in a result that is not a container, by path."""
    return {path or "output": value for path, value in leaves(result)}


def placed(value: Any, documents: Documents) -> bool:
    """Has an output a value per token, or per document?"""
    return isinstance(value, torch.Tensor) and (
        bool(documents.placements(value.shape)) or per_document(value, documents) is not None
    )


def per_document(value: torch.Tensor, documents: Documents) -> torch.Tensor | None:
    """Labels of an output with a slot for every document in its first dimension, broadcastable to it."""
    count = len(documents.numbers)
    if documents.placements(value.shape) or value.dim() == 0 or value.shape[0] != count or count < 2:
        return None
    return torch.tensor(documents.numbers).reshape(-1, *[1] * (value.dim() - 1))


def hits(
    base: Mapping[str, Any], other: Mapping[str, Any], documents: Documents, label: int, noise: float
) -> dict[str, Hit]:
    """Outputs that differ at other documents than ``label``."""
    found: dict[str, Hit] = {}
    for path, value in base.items():
        changed = other.get(path)
        if not isinstance(value, torch.Tensor) or not isinstance(changed, torch.Tensor):
            continue
        if value.shape != changed.shape or value.dtype != changed.dtype:
            continue
        rows = per_document(value, documents)
        if rows is None:
            hit = documents.hit(value, changed, label, noise)
        else:
            mask, size = differing(value, changed, (rows != label).to(value.device), noise)
            numbers = () if mask is None else tuple(rows[mask.cpu().expand(rows.shape)].tolist())
            hit = None if mask is None else Hit(mask, numbers, torch.empty(0, dtype=torch.long), size)
        if hit is not None:
            found[path] = hit
    return found


def noise_between(one: Mapping[str, Any], two: Mapping[str, Any]) -> float:
    """The largest finite difference of two equal runs."""
    largest = 0.0
    for path, value in one.items():
        other = two.get(path)
        if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor) and value.shape == other.shape:
            if value.is_floating_point() and value.numel():
                distance = (value.double() - other.double()).abs().nan_to_num(0.0, posinf=0.0)
                largest = max(largest, float(distance.max()))
    return largest


def unequal(one: Any, two: Any) -> bool:
    """Do two outputs differ at all?"""
    if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
        return False
    if one.shape != two.shape:
        return True
    return not bool(((one == two) | ((one != one) & (two != two))).all())


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What runs of the model alone say: for each document that was changed, the outputs that differ elsewhere."""

    noise: float
    dirty: dict[int, dict[str, Hit]]
    outputs: dict[int, dict[str, Any]]
    """What those runs returned."""


def compare(
    trial: Trial, others: Callable[[int], Tree], documents: Documents, probes: tuple[int, ...], progress: Progress
) -> tuple[Verdict, dict[str, Any], dict[str, bool], list[str]]:
    """Run the model as it is, and once for each document with other tokens there; as it is once more if anything
    differs that should not.

    Returns the verdict, the base's outputs, which outputs differ between any two runs, and what to tell the reader.
    """
    total = len(probes) + 1
    progress.step(0, total, "as it is")
    base = trial.run()
    state = trial.state_after
    noise: float | None = None
    dirty: dict[int, dict[str, Hit]] = {}
    outputs: dict[int, dict[str, Any]] = {}
    moved = dict.fromkeys(base, False)
    told: list[str] = []
    for k, label in enumerate(probes):
        progress.step(k + 1, total, f"other tokens, document {label - 1}" if label else "other padding")
        other = trial.run(others(label))
        if state is not None and trial.state_after is not None and not torch.equal(state, trial.state_after):
            told.append("how many random numbers are drawn depends on the tokens, so differences may be random ones")
        for path in base:
            moved[path] = moved[path] or unequal(base[path], other.get(path))
        if noise is None:
            if not hits(base, other, documents, label, EVERY):
                continue  # equal to the last bit: how far two equal runs are apart does not matter
            noise = noise_between(base, trial.run())
        found = hits(base, other, documents, label, noise)
        if found:
            dirty[label], outputs[label] = found, other
        elif rounding := hits(base, other, documents, label, EVERY):
            size = max(hit.size for hit in rounding.values())
            told.append(f"differences of at most {size:.1g} at other documents are rounding, and were not counted")
    return Verdict(noise or 0.0, dirty, outputs), base, moved, list(dict.fromkeys(told))
