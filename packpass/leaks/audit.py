"""``packpass.audit``: does any output or gradient at one document depend on another document, and through what?

Two steps. *Verdict*: the model itself runs, undisturbed, as it is and once for every probed document with other tokens
there (as it is once more if anything differs: so far apart are equal runs), until one of them is seen elsewhere. What
differs at other documents is a leak, whatever the model is made of. *Place*: only then the calls are followed
(`packpass.leaks.lockstep`), each is judged by itself, and those that matter to an output are named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from packpass._options import Options
from packpass.engine.compile import fresh_copy, is_compiled, uncompiled
from packpass.engine.explain import model_name
from packpass.leaks import boundaries, gradients, inputs, locate
from packpass.leaks.compiled import Following
from packpass.leaks.records import PADDING_NAME, Audit, NothingToCompare
from packpass.leaks.trial import Progress, Trial
from packpass.measuring.trees import clone_tree, tensors
from packpass.probing import tokens
from packpass.probing.compare import compare, placed, probes
from packpass.probing.documents import PADDING, Documents


def audit(
    model: Callable[..., Any],
    cu_seqlens: Any = None,
    *,
    documents: int | Sequence[int] = 3,
    backward: bool | None = None,
    progress: bool | None = None,
    backend: Any = None,
    **compile_kwargs: Any,
) -> Callable[..., Audit]:
    """``packpass.audit(model, cu_seqlens=None)(*args, **kwargs)`` says whether one document sees another.

    The tokens of a few documents are changed, one document at a time: floating-point arguments get noise added,
    integer tokens are exchanged for others of the batch. Nothing else may then change at any other document, nor may a
    gradient of a document's outputs reach another document's inputs. The arguments, parameters and buffers are left as
    they were.

    Args:
        model: a function, method or module. What is compiled in it runs without its compiler, unless ``backend``.
        cu_seqlens: boundaries of the documents along the row, ``[N + 1]``, in tokens. Without them: what the code
            declares (`packpass.packed`) or hands to an attention call, an argument with a well-known name, positions
            that restart, numbers of documents, or a padded batch, whose rows are documents.
        documents: how many documents to probe (the first, the last, and others evenly between them), or which, by
            number. Padding is probed as well, where there is some.
        backward: whether to look at gradients; by default wherever there is something to differentiate.
        progress: a bar on standard error; by default where it is a terminal and the work takes a few seconds.
        backend: ``None`` audits the model as it is; ``"packpass"``, or another backend of ``torch.compile``, what it
            becomes when it is compiled with that and ``compile_kwargs``.
        compile_kwargs: those of ``torch.compile``; without ``backend`` they are checked, and change nothing.

    Raises:
        ValueError: there are no boundaries, they fit no dimension, there is one document only, no token can be
            changed, or no output has a floating-point value per token: nothing would be compared.
        TypeError: ``model`` cannot be called.
    """
    Options.from_dict(compile_kwargs.get("options"))
    if not callable(model):
        raise TypeError(f"packpass.audit takes a callable, got {type(model).__name__}: {model!r}")

    def run(*args: Any, **kwargs: Any) -> Audit:
        shown = Progress(progress)
        try:
            return _Auditing(model, backend, compile_kwargs, (args, kwargs), shown).audit(
                cu_seqlens, documents, backward
            )
        finally:
            shown.end()

    return run


class _Auditing:
    """One audit."""

    def __init__(self, model: Any, backend: Any, compile_kwargs: dict[str, Any], tree: Any, progress: Progress) -> None:
        self.model, self.progress, self.tree = uncompiled(model), progress, tree
        self.was_compiled = is_compiled(model)
        self.runs_before = 0
        self.follow: Following | None = None
        call: Callable[..., Any] = self.model
        if backend is not None:
            self.follow = Following(self.model, backend, compile_kwargs)
            call = self.follow.compiled()
        elif isinstance(self.model, torch.nn.Module) and is_compiled(self.model.forward):
            call = fresh_copy(self.model)
        self.backend = backend
        self.trial = Trial(self.model, call, tree, eager=backend is None)

    def audit(self, cu_seqlens: Any, probes: int | Sequence[int], backward: bool | None) -> Audit:
        started = time.perf_counter()
        entries = inputs.inputs_of(self.model, *self.tree)
        if cu_seqlens is not None:
            documents = boundaries.given(cu_seqlens, entries)
        else:
            plain = Trial(self.model, fresh_copy(self.model), self.tree, eager=True)
            documents = boundaries.found(self.model, plain.run, self.tree[0], self.tree[1], entries)
            self.runs_before = plain.runs
        if len(documents.numbers) < 2 and not (documents.numbers and documents.padded):
            raise NothingToCompare(
                f"packpass.audit needs two documents to tell apart, and there is one only ({documents.source}); give a "
                "batch with several documents, or cu_seqlens= that cut it"
            )
        changes = tokens.plan(entries, documents)
        labels = _probed(documents, probes)
        if not changes.changed:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in changes.held) or "no argument lies along it"
            raise NothingToCompare(
                f"packpass.audit found no token to change along a row of {documents.grid} ({reasons}); give tokens or "
                "hidden states with a dimension of that length among the arguments"
            )
        result = Audit(f"packpass.audit({model_name(self.model)})", len(documents.numbers), documents.source)
        result.changed, result.held = tuple(i.name for i in changes.changed), changes.held
        result.probed = tuple(name_of(label) for label in labels)

        def others(label: int) -> Any:
            copy = clone_tree(self.trial.tree)
            changes.exchange(dict(tensors(copy)), documents, label)
            return copy

        step = self.progress.step
        verdict, base, moved, told = compare(self.trial, others, documents, labels, step, first=True)
        marked: dict[str, torch.Tensor] = {}
        if _elsewhere(base, moved, documents):
            marked = locate.marked_outputs(self.trial, self.follow, others, documents, labels[0])
            if marked and not verdict.dirty:
                verdict, _, _, told = compare(self.trial, others, documents, labels, step, first=True, marked=marked)
        self._outputs(result, base, moved, documents, {*marked}, verdict.other_forms)
        result.not_covered += told
        if verdict.dirty:
            to_follow = labels[labels.index(next(iter(verdict.dirty))) :]
            locate.places(result, self.trial, self.follow, others, documents, verdict, to_follow, self.progress)
        if backward is not False:
            dirty = bool(verdict.dirty)
            gradients.look(result, self.trial, self.follow, changes, documents, labels, bool(backward), dirty)
        self._notes(result, documents)
        result.runs, result.seconds = self.runs_before + self.trial.runs, time.perf_counter() - started
        return result

    def _outputs(
        self,
        result: Audit,
        base: dict[str, Any],
        moved: dict[str, bool],
        documents: Documents,
        marked: set[str],
        other_forms: frozenset[str],
    ) -> None:
        """What is compared; an error where nothing is. ``marked``: outputs that the row does not lie in, and of which
        is known whose their elements are. ``other_forms``: that could not be compared after all."""
        known = [path for path, value in base.items() if placed(value, documents) or path in marked]
        compared = [path for path in known if path not in other_forms]
        floating = [path for path in compared if base[path].is_floating_point() or base[path].is_complex()]
        if not floating:
            shapes = ", ".join(
                f"{path} {value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else path
                for path, value in base.items()
            )
            raise NothingToCompare(
                f"packpass.audit compares floating-point outputs with a value per token, and there is none ({shapes}); "
                "give a model that returns logits, hidden states or a loss per token (reduction='none')"
            )
        if not any(moved[path] for path in compared):
            raise NothingToCompare(
                "packpass.audit changed tokens and no output changed anywhere, so nothing was compared; give a model "
                f"whose outputs depend on {', '.join(result.changed)}"
            )
        result.compared = tuple(compared)
        for path, value in base.items():
            if path in compared or path in other_forms:
                continue
            if isinstance(value, torch.Tensor):
                if moved[path] and value.numel() < documents.flat.numel():
                    result.on_purpose.append(f"{path} {tuple(value.shape)}: one value for all documents")
                elif moved[path]:
                    result.not_covered.append(
                        f"output {path} {tuple(value.shape)} has no dimension of tokens or documents, and whose its "
                        "elements are cannot be followed, so it was not compared"
                    )
            elif not isinstance(value, (bool, int, float, str, type(None))):
                result.not_covered.append(f"output {path} is a {type(value).__name__}, which is not looked into")

    def _notes(self, result: Audit, documents: Documents) -> None:
        rest = len(documents.numbers) - sum(p != PADDING_NAME for p in result.probed)
        if rest:
            result.not_covered.append(f"{rest} of {len(documents.numbers)} documents were not changed (documents=)")
        if self.was_compiled and self.backend is None:
            result.not_covered.append(
                "the model is compiled and was audited without its compiler; backend= audits what that makes of it"
            )
        if self.module_has(documents):
            result.not_covered.append(
                "a parameter has a dimension as long as the row, so values may be laid in two ways; a row of another "
                "length gives a sharper answer"
            )
        if self.follow is not None:
            result.not_covered += self.follow.breaks()

    def module_has(self, documents: Documents) -> bool:
        """Does the row's length coincide with a size of the model?"""
        return any(documents.grid[-1] in p.shape for module in self.trial.modules for p in module.parameters())


def _elsewhere(base: dict[str, Any], moved: dict[str, bool], documents: Documents) -> bool:
    """Is there an output of several values that depends on tokens, and has no dimension of the row's length?"""
    return any(
        isinstance(value, torch.Tensor) and moved[path] and value.numel() > 1 and not placed(value, documents)
        for path, value in base.items()
    )


def name_of(label: int) -> int | str:
    """A label as people see it."""
    return PADDING_NAME if label == PADDING else label - 1


def _probed(documents: Documents, wanted: int | Sequence[int]) -> tuple[int, ...]:
    """Labels of the documents to change; padding where there is some."""
    there = documents.numbers
    if isinstance(wanted, bool) or (isinstance(wanted, int) and wanted < 1):
        raise ValueError(f"documents = {wanted!r}: must be at least 1, or numbers of documents")
    if isinstance(wanted, int):
        picked: Iterable[int] = probes(documents, wanted)
    else:
        missing = [n for n in wanted if n + 1 not in there]
        if missing or not wanted:
            raise ValueError(f"documents = {list(wanted)}: there are documents 0 to {max(there) - 1} with tokens")
        picked = dict.fromkeys(n + 1 for n in wanted)
    return (*picked, *((PADDING,) if documents.padded else ()))
