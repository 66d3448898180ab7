"""From the verdict that documents see each other to the operations that let them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from packpass.leaks.calls import Site
from packpass.leaks.compiled import Following
from packpass.leaks.lockstep import Lockstep, Mixing
from packpass.leaks.records import PADDING_NAME, Audit, Leak
from packpass.leaks.trial import Progress, Tree, Trial, outputs_of
from packpass.leaks.words import NOT_LOCATED, advice, distance
from packpass.measuring.trees import clone_tree, tensors
from packpass.probing.compare import Verdict, hits
from packpass.probing.documents import EVERY, PADDING, Documents, Hit, differing
from packpass.semantics.mixing_by_name import mixes_on_purpose, mixing_kind

MOST_CONFIRMED = 24
"""Sites that are looked at one by one; each costs a run."""


class _Everything(Collection[Site]):
    """Every operation."""

    def __contains__(self, item: object) -> bool:
        return True

    def __iter__(self) -> Iterator[Site]:
        return iter(())

    def __len__(self) -> int:
        return 0


class _Followed:
    """Runs of the model whose calls are followed."""

    def __init__(
        self, trial: Trial, follow: Following | None, others: Callable[[int], Tree], documents: Documents, v: Verdict
    ) -> None:
        self.trial, self.follow, self.others, self.documents = trial, follow, others, documents
        self.sources, self.noise, self.verdict = tuple(v.dirty), v.noise, v
        self.returned: dict[int, dict[str, Any]] = {}
        """Outputs of the last run, in the world of each document."""
        sizes = [hit.size for found in v.dirty.values() for hit in found.values()]
        self.smallest = 1e-3 * min(sizes)
        """Less than this beside what the verdict saw is the rounding of what was healed."""

    def run(
        self, leave: Collection[Site] = (), noise: float | None = None, only: tuple[int, ...] = ()
    ) -> tuple[Lockstep, dict[int, Hit]]:
        """Follow one run; returns what mixed, and where outputs still depend on which document (beyond ``noise``)."""
        sources = only or self.sources
        step = Lockstep(self.documents, sources, self.noise, leave)
        args, kwargs = clone_tree(self.trial.tree)
        worlds = [self.others(label) for label in sources]
        step.track((t for _, t in tensors((args, kwargs))), [[t for _, t in tensors(world)] for world in worlds])
        with self.trial.circumstances(), torch.no_grad():
            if self.follow is None:
                with step:
                    result = self.trial.call(*args, **kwargs)
            else:
                result = self.follow.run(step, args, kwargs)
        base = outputs_of(result)
        dirty = {}
        for k, label in enumerate(sources):
            other = {p: step.in_world(v, k) if isinstance(v, torch.Tensor) else v for p, v in base.items()}
            self.returned[label] = other
            found = hits(base, other, self.documents, label, self.noise if noise is None else noise)
            if found:
                dirty[label] = _widest(found)
        return step, dirty

    def astray(self) -> dict[int, Hit]:
        """Where outputs differ although calls that nothing is healed in give something else: a part of the model was
        not followed."""
        self.run(_Everything(), only=self.sources[:1])  # one document is enough, and costs least
        found = {}
        for label in self.sources[:1]:
            real = self.verdict.outputs[label]
            for path, value in real.items():
                followed = self.returned[label].get(path)
                if path in self.verdict.dirty[label] and isinstance(followed, torch.Tensor):
                    everywhere = torch.ones([1] * value.dim(), dtype=torch.bool, device=value.device)
                    if differing(value, followed, everywhere, self.noise)[0] is not None:
                        found[label] = self.verdict.dirty[label][path]
        return found

    def judged(self, different: dict[int, Hit]) -> dict[int, Hit]:
        """Of outputs that differ in any way, those of the documents that count."""
        return {label: hit for label, hit in different.items() if hit.size > self.smallest}


@dataclasses.dataclass
class _Group:
    """Operations that mix in one stretch away from the row, as the lines of one recurrence, or one operation."""

    parts: list[Mixing]
    reach: dict[int, Hit] = dataclasses.field(default_factory=dict)
    """What outputs see when these are not healed."""

    @property
    def sites(self) -> set[Site]:
        return {part.site for part in self.parts}

    @property
    def seen(self) -> dict[int, Hit]:
        return {label: hit for part in reversed(self.parts) for label, hit in part.seen.items()}


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


def places(
    audit: Audit,
    trial: Trial,
    follow: Following | None,
    others: Callable[[int], Tree],
    documents: Documents,
    verdict: Verdict,
    progress: Progress,
) -> None:
    """Add the leaks behind a verdict to an audit: the operations that reach an output when all others are healed."""
    followed = _Followed(trial, follow, others, documents, verdict)
    progress.step(0, 2, "following the calls")
    all_dirty = {label: _widest(found) for label, found in verdict.dirty.items()}
    try:
        step, different = followed.run(noise=EVERY)
        beyond = followed.judged(different)
        left = beyond or followed.astray()
    except Exception as error:
        audit.not_covered.append(f"the calls could not be followed: {type(error).__name__}: {str(error)[:200]}")
        step, left = Lockstep(documents, followed.sources, verdict.noise), all_dirty
        different = beyond = left
    audit.not_covered += step.raised
    groups = _groups(list(step.found.values()))
    for k, group in enumerate(groups[:MOST_CONFIRMED]):
        progress.step(k, len(groups), f"{group.parts[0].site.operation} at {group.parts[0].site.location}")
        # Where nothing at all is left when everything is healed, whatever comes back is of these operations.
        noise = EVERY if not different else None
        dirty = all_dirty if len(groups) == 1 and not (left or different) else followed.run(group.sites, noise)[1]
        group.reach = {label: hit for label, hit in dirty.items() if label not in beyond}
    reached = [group for group in groups if group.reach] + groups[MOST_CONFIRMED:]
    for group in reached or groups:  # none alone, but together
        site = group.parts[0].site
        if mixes_on_purpose(site.operation):
            audit.on_purpose.append(f"{site.operation} at {site.location}: statistics of all tokens")
        else:
            audit.leaks.append(_leak(group, documents))
    if left:
        audit.not_covered += step.lost
        origins = list(step.scrambling)
        origin = origins[0] if origins and not reached else None
        audit.leaks.append(_rest(verdict, left, documents, origin))


def _leak(group: _Group, documents: Documents) -> Leak:
    first, seen = group.parts[0], group.seen
    label = next((s for s in seen if s in group.reach and s != PADDING), next(iter(seen)))
    hit, kind = seen[label], mixing_kind(first.site.operation)
    if not _in_row(first):
        # Inside a stretch only documents are known; how far it gets is seen at the outputs.
        hit = group.reach.get(label, hit)
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
        size=seen[label].size,
        also=tuple(f"{part.site.operation} at {part.site.location}" for part in group.parts[1:]),
    )


def _rest(verdict: Verdict, left: dict[int, Hit], documents: Documents, site: Site | None) -> Leak:
    """What no operation that was followed explains; or the one after which it could not be followed."""
    label = min(left, key=lambda one: (one == PADDING, one))
    hit = left[label]
    kind = mixing_kind(site.operation) if site is not None else "unknown"
    return Leak(
        location=site.location if site is not None else "<not located>",
        operation=site.operation if site is not None else f"output {next(iter(verdict.dirty[label]))}",
        source_document=PADDING_NAME if label == PADDING else label - 1,
        seen_by=tuple(n - 1 for n in hit.documents),
        distance=distance(documents, label, hit),
        advice=advice(kind, label) if site is not None else NOT_LOCATED,
        kind=kind,
        size=hit.size,
    )
