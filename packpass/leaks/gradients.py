"""The backward half of an audit: a gradient of one document's outputs that reaches another document's inputs.

Where outputs leak, gradients do, too; those are marked on the leaks that the forward found. What leaks in gradients
alone (a backward written by hand that knows no boundaries) is found where a gradient first leaves its document.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from packpass._compat import in_functorch
from packpass.leaks.calls import Site, operation_name, reads_attribute, tensors_in, user_location
from packpass.leaks.compiled import Following
from packpass.leaks.records import Audit, Leak
from packpass.leaks.trial import Trial, outputs_of
from packpass.leaks.words import BACKWARD_ADVICE, distance
from packpass.measuring.trees import clone_tree, leaves, map_tensors
from packpass.probing.documents import PADDING, Documents, Hit
from packpass.probing.gradients import Recorded, cotangents, foreign_gradients, halves, outside
from packpass.probing.tokens import Changes
from packpass.semantics.mixing_by_name import is_slot_by_slot, mixing_kind, moves_slots


class _Watch(TorchFunctionMode):
    """Follows a forward that records gradients: where tokens become numbers, and who reads which value."""

    def __init__(self, documents: Documents, tokens: list[torch.Tensor]) -> None:
        super().__init__()
        self.documents = documents
        self.location: Callable[[], str] = user_location
        self.entries: list[tuple[str, torch.Tensor]] = []
        self.readers: list[tuple[Site, list[torch.Tensor], list[torch.Tensor]]] = []
        self._tokens: Any = WeakIdKeyDictionary()
        for token in tokens:
            self._tokens[token] = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if reads_attribute(func):
            return result
        operands = list(tensors_in((args, kwargs)))
        results = list(tensors_in(result))
        if not results or any(in_functorch(t) for t in (*operands, *results)):
            return result
        name = operation_name(func)
        if any(t in self._tokens for t in operands):
            self._from_tokens(name, results)
        read = [t for t in operands if t.requires_grad and self.documents.placements(t.shape)]
        if read:
            made = [t for t in results if self.documents.placements(t.shape)]
            self.readers.append((Site(name, self.location()), read, made))
        return result

    def _from_tokens(self, name: str, results: list[torch.Tensor]) -> None:
        """Integers stay tokens; the first numbers that are made of them are what gradients are asked for."""
        for tensor in results:
            if not tensor.is_floating_point():
                self._tokens[tensor] = True
            elif torch.is_grad_enabled() and len(self.documents.placements(tensor.shape)) == 1:
                if not tensor.requires_grad:
                    tensor.requires_grad_(True)
                self.entries.append((f"{name} of tokens", tensor))


@dataclasses.dataclass
class _Recorded:
    """A forward whose gradients can be asked for, and the calls that made it."""

    watch: _Watch
    values: Recorded


def look(
    audit: Audit,
    trial: Trial,
    follow: Following | None,
    changes: Changes,
    documents: Documents,
    labels: tuple[int, ...],
    required: bool,
    forward_dirty: bool,
) -> None:
    """Add to an audit what gradients say, one backward for each probed document."""
    if not torch.is_grad_enabled() and not required:
        return
    # Buffers are put back behind the last backward, which may need what the forward wrote.
    recorded: _Recorded | str
    with trial.circumstances(), torch.enable_grad():
        try:
            recorded = _record(trial, follow, changes, documents)
        except Exception as error:  # a kernel without a backward, an input that is written in place
            recorded = f"a forward that records them raised {type(error).__name__}: {str(error).splitlines()[0]}"
        if isinstance(recorded, str):
            audit.not_covered.append(f"gradients: {recorded}")
        else:
            _look(audit, recorded, documents, labels, forward_dirty)


def _look(
    audit: Audit, recorded: _Recorded, documents: Documents, labels: tuple[int, ...], forward_dirty: bool
) -> None:
    wanted = dict.fromkeys(name for name, _ in recorded.values.wanted)
    found: dict[int, dict[str, Hit]] = {}
    try:
        # One backward of many documents at once says whether there is anything to say; only then one for each.
        if not any(foreign_gradients(recorded.values, half, 1) for half in halves(documents)):
            pass
        elif forward_dirty:
            audit.leaks = [dataclasses.replace(leak, direction="forward and backward") for leak in audit.leaks]
        else:
            found = {
                label: foreign_gradients(recorded.values, documents, label) for label in labels if label != PADDING
            }
            found = {label: hits for label, hits in found.items() if hits} or _any_of(recorded, documents, labels)
    except RuntimeError as error:
        audit.not_covered.append(f"gradients: the backward raised: {str(error).splitlines()[0]}")
        return
    audit.compared += tuple(f"gradient of {name}" for name in wanted)
    if found:
        audit.leaks += _places(recorded, documents, found)


def _any_of(recorded: _Recorded, documents: Documents, labels: tuple[int, ...]) -> dict[int, dict[str, Hit]]:
    """The first document that gradients leave, where none of those that were probed is one."""
    for label in documents.numbers:
        if label not in labels and (hits := foreign_gradients(recorded.values, documents, label)):
            return {label: hits}
    return {}


def _record(trial: Trial, follow: Following | None, changes: Changes, documents: Documents) -> _Recorded | str:
    """Run the model with gradients recorded; text says why there is nothing to ask for."""
    args, kwargs = clone_tree(trial.tree)
    at = {path: value for path, value in leaves((args, kwargs)) if isinstance(value, torch.Tensor)}
    wanted, tokens = [], []
    for entry in changes.changed:
        value = at[entry.path]
        if value.is_floating_point():
            wanted.append((entry.name, value.requires_grad_(True)))
        else:
            tokens.append(value)
    given = {id(value) for _, value in wanted}
    # Copies, because no model may write into what gradients are asked for.
    args, kwargs = map_tensors((args, kwargs), lambda t: t.clone() if id(t) in given else t)
    watch = _Watch(documents, tokens)
    if follow is not None:
        result = follow.run(watch, args, kwargs)
    else:
        with watch:
            result = trial.call(*args, **kwargs)
    outputs = [
        value
        for value in outputs_of(result).values()
        if isinstance(value, torch.Tensor) and value.requires_grad and documents.placements(value.shape)
    ]
    wanted += watch.entries
    if not outputs:
        return "no output with a value per token requires one"
    if not wanted:
        return "no floating-point input, and no embedding of the tokens that was seen"
    return _Recorded(watch, Recorded(wanted, outputs))


def _places(recorded: _Recorded, documents: Documents, found: dict[int, dict[str, Hit]]) -> list[Leak]:
    """The operations at which a gradient leaves its document: those whose results have clean ones, and an operand of
    which has not."""
    leaks: dict[Site, Leak] = {}
    read = {id(t): t for _, operands, _ in recorded.watch.readers for t in operands}
    values = list(read.values())
    for label, hits in found.items():
        given = cotangents(recorded.values, documents, label)
        gradients = torch.autograd.grad(recorded.values.outputs, values, given, retain_graph=True, allow_unused=True)
        strayed = {
            id(value): hit
            for value, gradient in zip(values, gradients, strict=True)
            if gradient is not None and (hit := outside(gradient, documents, label)) is not None
        }
        first: list[tuple[Site, Hit]] = []
        for site, operands, results in recorded.watch.readers:
            hit = next((strayed[id(t)] for t in operands if id(t) in strayed), None)
            if hit is not None and not any(id(t) in strayed for t in results):
                first.append((site, hit))
        # A value with several readers gets the sum of their gradients: those that only move slots are not to blame.
        mixing = [(s, h) for s, h in first if not (moves_slots(s.operation) or is_slot_by_slot(s.operation))]
        for site, hit in mixing or first or [(Site("backward", "<not located>"), next(iter(hits.values())))]:
            leaks.setdefault(site, _leak(site, hit, documents, label))
    return list(leaks.values())


def _leak(site: Site, hit: Hit, documents: Documents, label: int) -> Leak:
    kind = mixing_kind(site.operation)
    return Leak(
        location=site.location,
        operation=site.operation,
        source_document=label - 1,
        seen_by=tuple(n - 1 for n in hit.documents),
        distance=distance(documents, label, hit),
        advice=BACKWARD_ADVICE,
        kind=kind,
        direction="backward",
        size=hit.size,
    )
