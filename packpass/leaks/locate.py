"""From the verdict that documents see each other to the operations that let them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from packpass.leaks.calls import Site
from packpass.leaks.compiled import Following
from packpass.leaks.lockstep import Lockstep, Mixing, World
from packpass.leaks.records import PADDING_NAME, Audit, Leak
from packpass.leaks.trial import Progress, Tree, Trial, outputs_of
from packpass.leaks.words import NOT_LOCATED, advice, distance
from packpass.measuring.trees import clone_tree, tensors
from packpass.probing.compare import Verdict, hits
from packpass.probing.documents import EVERY, PADDING, Documents, Hit, Label, differing
from packpass.semantics.mixing_by_name import mixes_on_purpose, mixing_kind

MOST_CONFIRMED = 24
"""Sites that are looked at one by one; each costs a run."""

MOST_WORLDS = 6
"""Runs beside the base at one time: each keeps its own values."""

APART = 3
"""So many times as many documents as are changed: then they can be changed together, and most have neighbours that
are not."""


class _Everything(Collection[Site]):
    """Every operation."""

    def __contains__(self, item: object) -> bool:
        return True

    def __iter__(self) -> Iterator[Site]:
        return iter(())

    def __len__(self) -> int:
        return 0


class _Followed:
    """Runs of the model whose calls are followed. ``labels``: documents that may be changed."""

    def __init__(
        self,
        trial: Trial,
        follow: Following | None,
        others: Callable[[int], Tree],
        documents: Documents,
        verdict: Verdict,
        labels: Sequence[int],
    ) -> None:
        self.trial, self.follow, self.others, self.documents = trial, follow, others, documents
        self.noise, self.verdict, self.labels = verdict.noise, verdict, tuple(labels)
        self.first = next(iter(verdict.dirty))
        """The document of which is known what the model itself does with it."""
        sizes = [hit.size for found in verdict.dirty.values() for hit in found.values()]
        self.smallest = 1e-3 * min(sizes)
        """Less than this beside what the verdict saw is the rounding of what was healed."""

    def separate(self) -> list[World]:
        """A world for every document."""
        return [World(label) for label in self.labels]

    def joint(self) -> list[World]:
        """One world for all documents, where they are far apart; nothing where they are not."""
        real = [label for label in self.labels if label != PADDING]
        if len(real) < 2 or len(self.documents.numbers) < APART * len(real):
            return []
        return [World(frozenset(real)), *(World(label) for label in self.labels if label == PADDING)]

    def run(
        self, worlds: Sequence[World], noise: float | None = None
    ) -> tuple[Lockstep, dict[int, Hit], list[dict[str, Any]]]:
        """Follow one run; returns what mixed, the worlds (by number) whose outputs at other documents are not the
        base's beyond ``noise``, and all outputs."""
        step = Lockstep(self.documents, worlds, self.noise)
        args, kwargs = clone_tree(self.trial.tree)
        given = [[t for _, t in tensors(self._changed(world.label))] for world in worlds]
        step.track((t for _, t in tensors((args, kwargs))), given)
        with self.trial.circumstances(), torch.no_grad():
            if self.follow is None:
                with step:
                    result = self.trial.call(*args, **kwargs)
            else:
                result = self.follow.run(step, args, kwargs)
        base = outputs_of(result)
        dirty, returned, marked = {}, [], _marked(step, base)
        for k, world in enumerate(worlds):
            other = {p: step.in_world(v, k) if isinstance(v, torch.Tensor) else v for p, v in base.items()}
            returned.append(other)
            allowed = self.noise if noise is None else noise
            found = hits(base, other, self.documents, world.label, allowed, marked=marked)
            if found:
                dirty[k] = _widest(found)
        return step, dirty, returned

    def _changed(self, label: Label) -> Tree:
        """The arguments in which these documents are others."""
        first, *more = [label] if isinstance(label, int) else sorted(label)
        made = self.others(first)
        for other in more:
            for (_, into), (_, of) in zip(tensors(made), tensors(self.others(other)), strict=True):
                own = self.documents.own(into.shape, other)
                if own is not None and not torch.equal(into, of):
                    into.detach().copy_(torch.where(own.to(into.device), of, into))
        return made

    def astray(self, returned: dict[str, Any]) -> dict[int, Hit]:
        """Where outputs differ although calls that nothing is healed in give something else (``returned``, of the first
        document): a part of the model was not followed."""
        found = {}
        for path, value in self.verdict.outputs[self.first].items():
            followed = returned.get(path)
            if path in self.verdict.dirty[self.first] and isinstance(followed, torch.Tensor):
                everywhere = torch.ones([1] * value.dim(), dtype=torch.bool, device=value.device)
                if differing(value, followed, everywhere, self.noise)[0] is not None:
                    found[self.first] = self.verdict.dirty[self.first][path]
        return found


@dataclasses.dataclass
class _Group:
    """Operations that mix in one stretch away from the row, as the lines of one recurrence, or one operation."""

    parts: list[Mixing]
    label: int = PADDING
    """The document of which outputs see something when these are not healed."""
    reach: Hit | None = None
    """Where they see it; None: nowhere, or it is not known."""
    seen: Hit | None = None
    """Where its own result differs then."""

    @property
    def sites(self) -> set[Site]:
        return {part.site for part in self.parts}


def _marked(step: Lockstep, outputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Whose the elements are of outputs that the grid does not lie in."""
    values = {path: value for path, value in outputs.items() if isinstance(value, torch.Tensor)}
    return {path: found for path, value in values.items() if (found := step.labels_of(value)) is not None}


def marked_outputs(
    trial: Trial, follow: Following | None, others: Callable[[int], Tree], documents: Documents, label: int
) -> dict[str, torch.Tensor]:
    """Labels of outputs that the grid does not lie in (a loss of T - 1 slots, a list of documents), as far as they can
    be followed from the row through the calls."""
    step = Lockstep(documents, [World(label)], 0.0)
    args, kwargs = clone_tree(trial.tree)
    step.track((t for _, t in tensors((args, kwargs))), [[t for _, t in tensors(others(label))]])
    try:
        with trial.circumstances(), torch.no_grad():
            if follow is None:
                with step:
                    result = trial.call(*args, **kwargs)
            else:
                result = follow.run(step, args, kwargs)
    except Exception:  # what cannot be followed is not compared, and the audit says so
        return {}
    return _marked(step, outputs_of(result))


def _widest(found: dict[str, Hit]) -> Hit:
    return max(found.values(), key=lambda hit: (len(hit.slots), len(hit.documents)))


def _groups(found: list[Mixing]) -> list[_Group]:
    groups: list[_Group] = []
    for mixing in found:
        before = groups[-1].parts[-1] if groups else None
        if before is not None and before.stretch == mixing.stretch and not (_in_row(before) or _in_row(mixing)):
            groups[-1].parts.append(mixing)
        else:
            groups.append(_Group([mixing]))
    return groups


def _in_row(mixing: Mixing) -> bool:
    """Were slots of the row hit, rather than elements of something that was made of them?"""
    return all(len(hit.slots) for hit in mixing.seen.values())


@dataclasses.dataclass
class _Explained:
    """What following the calls says. ``beyond``: what outputs still see when everything is healed; ``left``: that, or
    what they see because a part of the model was not followed."""

    step: Lockstep
    groups: list[_Group]
    beyond: dict[int, Hit]
    left: dict[int, Hit]

    @property
    def reached(self) -> list[_Group]:
        return [group for group in self.groups if group.reach is not None]


def _explained(followed: _Followed, worlds: list[World], progress: Progress) -> _Explained:
    """Follow the calls with everything healed, and then with each group of operations that mix left alone."""
    progress.step(0, 2, "following the calls")
    step, different, _ = followed.run(worlds, noise=EVERY)
    over = {k for k, hit in different.items() if hit.size > followed.smallest}
    beyond = {_one(worlds[k].label, followed.first): different[k] for k in over}
    out = _Explained(step, _groups(list(step.found.values())), beyond, beyond)
    # Where nothing at all is left when everything is healed, whatever comes back is of these operations.
    noise = EVERY if not different else None
    candidates: dict[int, list[int]] = {}
    for g, group in enumerate(out.groups[:MOST_CONFIRMED]):
        seen = {k for part in group.parts for k in part.seen} - over
        labels = [label for k in seen for label in _all(worlds[k].label)]
        candidates[g] = sorted(labels, key=lambda label: (label != followed.first, label == PADDING, label))
    if not beyond:
        # The run that shows whether all was followed is beside the others, or is all that is needed.
        alone = len(out.groups) == 1 and not different
        pending = [] if alone else _next(candidates, MOST_WORLDS - 1)
        nothing_healed = World(followed.first, _Everything())
        confirmed, dirty, returned = followed.run([*_worlds(out.groups, pending), nothing_healed], noise)
        out.left = followed.astray(returned[-1])
        _note(out.groups, pending, confirmed, dirty, candidates)
        if alone and not out.left:
            _note(out.groups, [(0, followed.first)], confirmed, dirty, candidates)
    while pending := _next(candidates, MOST_WORLDS):
        progress.step(1, 2, f"confirming {out.groups[pending[0][0]].parts[0].site.operation}")
        confirmed, dirty, _ = followed.run(_worlds(out.groups, pending), noise)
        _note(out.groups, pending, confirmed, dirty, candidates)
    return out


def _one(label: Label, first: int) -> int:
    return label if isinstance(label, int) else first


def _all(label: Label) -> list[int]:
    return [label] if isinstance(label, int) else sorted(label)


def _next(candidates: dict[int, list[int]], room: int) -> list[tuple[int, int]]:
    """Groups to be left alone in the next run, each with the document that is changed there."""
    return [(g, labels.pop(0)) for g, labels in [(g, found) for g, found in candidates.items() if found][:room]]


def _worlds(groups: list[_Group], pending: list[tuple[int, int]]) -> list[World]:
    return [World(label, groups[g].sites) for g, label in pending]


def _note(
    groups: list[_Group],
    pending: list[tuple[int, int]],
    step: Lockstep,
    dirty: dict[int, Hit],
    candidates: dict[int, list[int]],
) -> None:
    """Write down which groups reach an output; of the others more documents are tried."""
    for k, (g, label) in enumerate(pending):
        if k in dirty:
            parts = [step.found[site.site] for site in groups[g].parts if site.site in step.found]
            groups[g].label, groups[g].reach = label, dirty[k]
            groups[g].seen = next((part.seen[k] for part in parts if k in part.seen), None)
            candidates.pop(g, None)


def places(
    audit: Audit,
    trial: Trial,
    follow: Following | None,
    others: Callable[[int], Tree],
    documents: Documents,
    verdict: Verdict,
    labels: Sequence[int],
    progress: Progress,
) -> None:
    """Add the leaks behind a verdict to an audit: the operations that reach an output when all others are healed.
    ``labels``: the documents that may be changed."""
    followed = _Followed(trial, follow, others, documents, verdict, labels)
    joint = followed.joint()
    try:
        found = _explained(followed, joint or followed.separate(), progress)
        if joint and (found.beyond or not found.reached):  # perhaps what was changed together sees each other
            found = _explained(followed, followed.separate(), progress)
    except Exception as error:
        audit.not_covered.append(f"the calls could not be followed: {type(error).__name__}: {str(error)[:200]}")
        seen = {label: _widest(hits) for label, hits in verdict.dirty.items()}
        found = _Explained(Lockstep(documents, [], verdict.noise), [], seen, seen)
    audit.not_covered += found.step.raised
    lost = list(found.step.lost)
    for group in [*found.reached, *found.groups[MOST_CONFIRMED:]] or found.groups:  # none alone, but together
        site = group.parts[0].site
        if mixes_on_purpose(site.operation):
            audit.on_purpose.append(f"{site.operation} at {site.location}: statistics of all tokens")
        else:
            audit.leaks.append(_leak(group, documents, followed))
    if found.left:
        audit.not_covered += [f"calls inside torch.vmap or torch.func at {s.location} are not followed" for s in lost]
        origins = [] if found.reached else list(found.step.scrambling)
        audit.leaks.append(_rest(verdict, found.left, documents, [*origins, *lost, *found.step.read]))


def _leak(group: _Group, documents: Documents, followed: _Followed) -> Leak:
    first = group.parts[0]
    label = group.label if group.reach is not None else followed.first
    seen = hit = group.seen or next(iter(first.seen.values()))
    kind = mixing_kind(first.site.operation)
    if not _in_row(first):
        # Inside a stretch only documents are known; how far it gets is seen at the outputs.
        hit = group.reach or hit
        kind = "recurrence"
    return Leak(
        location=first.site.location,
        operation=first.site.operation,
        source_document=PADDING_NAME if label == PADDING else label - 1,
        seen_by=tuple(n - 1 for n in hit.documents),
        distance=distance(documents, label, hit),
        advice=advice(kind, label),
        kind=kind,
        calls=first.calls,
        size=seen.size,
        also=tuple(f"{part.site.operation} at {part.site.location}" for part in group.parts[1:]),
    )


def _rest(verdict: Verdict, left: dict[int, Hit], documents: Documents, sites: Sequence[Site]) -> Leak:
    """What no operation that was followed explains; ``sites``: after which it could not be followed, perhaps."""
    site = next(iter(sites), None)
    label = min(left, key=lambda one: (one == PADDING, one))
    hit = left[label]
    path = next(iter(verdict.dirty.get(label) or next(iter(verdict.dirty.values()))))
    kind = mixing_kind(site.operation) if site is not None else "unknown"
    return Leak(
        location=site.location if site is not None else "<not located>",
        operation=site.operation if site is not None else f"output {path}",
        source_document=PADDING_NAME if label == PADDING else label - 1,
        seen_by=tuple(n - 1 for n in hit.documents),
        distance=distance(documents, label, hit),
        advice=advice(kind, label) if site is not None and kind != "unknown" else NOT_LOCATED,
        kind=kind,
        size=hit.size,
        also=tuple(f"{other.operation} at {other.location}" for other in sites[1:]),
    )
