"""Which operations let a difference into other documents: a model run once as it is and, call by call beside it, once
for every document whose tokens are changed.

Every call is made in each of these *worlds* on the tensors that this world has in place of the base's, with the same
random numbers. Where a result differs at another document, the operation mixes documents. The difference is then
*healed*, that is overwritten with the base's values, so that every operation is judged by itself: a leak in the first
layer hides none in the second. Only live values are kept, so memory is that of one run for each world.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from packpass._compat import in_functorch
from packpass.leaks.calls import (
    Site,
    operation_name,
    reads_attribute,
    tensors_in,
    user_location,
    with_tensors,
    writes_first,
)
from packpass.leaks.labels import labels_after
from packpass.probing.documents import Documents, Hit, Label, differing, of_others
from packpass.semantics.mixing_by_name import (
    addresses,
    is_slot_by_slot,
    looks_at_form,
    makes_garbage,
    mixing_kind,
    moves_slots,
    writes_an_item,
)


@dataclasses.dataclass
class Mixing:
    """An operation that let documents see each other: for every world what was hit, first call.

    ``stretch``: counts how often values had come back to the row before; what mixes in one stretch belongs together.
    """

    site: Site
    stretch: int
    seen: dict[int, Hit] = dataclasses.field(default_factory=dict)
    calls: int = 0


_SOMEWHERE = Hit(torch.ones(1, dtype=torch.bool), (), torch.empty(0, dtype=torch.long), 0.0)
"""A difference of which only that it is there is of interest."""


@dataclasses.dataclass(frozen=True)
class World:
    """What is other than in the base: the document, or documents, that are changed (``label``), and the sites at which
    nothing is healed (``leave``)."""

    label: Label
    leave: Collection[Site] = ()


class Lockstep(TorchFunctionMode):
    """Active while the base runs; ``found`` says afterwards what mixed.

    Args:
        documents: the slots.
        worlds: what is run beside the base.
    """

    def __init__(self, documents: Documents, worlds: Sequence[World], noise: float) -> None:
        super().__init__()
        self.documents, self.worlds, self.noise = documents, tuple(worlds), noise
        self.found: dict[Site, Mixing] = {}
        self.raised: dict[str, None] = {}
        self.lost: dict[Site, None] = {}
        """What was not followed; no harm unless something stays without a place."""
        self.read: dict[Site, None] = {}
        """Where Python reads values that are others in some world, and goes on with the base's in all."""
        self.location: Callable[[], str] = user_location
        self.stretch = 0
        self.scrambling: dict[Site, None] = {}
        """Operations that put slots where tokens say, and whose results were never put back."""
        self._scrambled: Any = WeakIdKeyDictionary()
        """By world: the operation that put slots where tokens say."""
        self._left: Any = WeakIdKeyDictionary()
        """Worlds in which a value differs at other documents because it, or what it is made of, was not healed."""
        self._worlds: Any = WeakIdKeyDictionary()
        self._labels: Any = WeakIdKeyDictionary()
        self._carried: Any = WeakIdKeyDictionary()
        """Of values that the grid does not lie in: the operations that they went through since it did."""

    def track(self, base: Iterable[torch.Tensor], others: list[list[torch.Tensor]]) -> None:
        """Tell which tensors stand for these of the base, world by world."""
        for k, tensor in enumerate(base):
            self._worlds[tensor] = [world[k] for world in others]

    def in_worlds(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """What stands for a tensor of the base in each world."""
        found = self._worlds.get(tensor)
        return found if found is not None else [tensor] * len(self.worlds)

    def in_world(self, tensor: torch.Tensor, world: int) -> torch.Tensor:
        """What stands for a tensor of the base in one world."""
        return self.in_worlds(tensor)[world]

    def labels_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Whose every element of a result is, where the grid does not lie in it; None if that is not known."""
        return None if tensor in self._scrambled else self._labels.get(tensor)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = operation_name(func)
        operands = list(tensors_in((args, kwargs)))
        if looks_at_form(name):
            return func(*args, **kwargs)
        if any(in_functorch(t) for t in operands):
            self.lost[Site("vmap", self.location())] = None
            return func(*args, **kwargs)
        if reads_attribute(func):
            result = func(*args, **kwargs)
            if not isinstance(result, torch.Tensor):
                return result
        elif writes_first(name, kwargs):
            self._own_copies(operands[:1] if kwargs.get("out") is None else tensors_in(kwargs["out"]))
        return self._call(func, name, args, kwargs, operands)

    def _own_copies(self, written: Iterable[torch.Tensor]) -> None:
        """What is written and was the same tensor in all worlds is a tensor of each world's own from now on."""
        for tensor in written:
            if tensor not in self._worlds:
                self._worlds[tensor] = [tensor.detach().clone() for _ in self.worlds]

    def _call(self, func: Any, name: str, args: Any, kwargs: dict[str, Any], operands: list[torch.Tensor]) -> Any:
        arguments = [
            with_tensors((args, kwargs), functools.partial(self.in_world, world=world))
            for world in range(len(self.worlds))
        ]
        before = torch.get_rng_state()
        result = func(*args, **kwargs)
        after = torch.get_rng_state()
        results = list(tensors_in(result))
        if not results:
            if writes_an_item(name):
                results = operands[:1]
            else:
                if any(self._differs_but(t, ()) for t in operands):
                    self.read[Site(name, self.location())] = None
                return result
        worlds = []
        for other_args, other_kwargs in arguments:
            torch.set_rng_state(before)
            try:
                made = func(*other_args, **other_kwargs)
                tensors = list(tensors_in(made)) if not writes_an_item(name) else [other_args[0]]
            except Exception as error:
                self.raised[f"{name} at {self.location()} raised for other tokens: {str(error).splitlines()[0]}"] = None
                tensors = []
            if makes_garbage(name) or len(tensors) != len(results):
                tensors = [t.detach().clone() for t in results]  # Python goes on with as many as the base has
            worlds.append(tensors)
        torch.set_rng_state(after)
        self.track(results, worlds)
        self._judge(func, name, args, kwargs, operands, results)
        return result

    # === What became of the difference =======================================================================

    def _judge(
        self, func: Any, name: str, args: Any, kwargs: dict[str, Any], operands: list[torch.Tensor], results: list[Any]
    ) -> None:
        scrambled = {k: origin for t in operands for k, origin in self._scrambled.get(t, {}).items()}
        labels: list[torch.Tensor | None] = [None] * len(results)
        if not scrambled and any(not self.documents.placements(r.shape) for r in results):
            labels = labels_after(name, func, args, kwargs, results, self._labels_of)
        carried = tuple(dict.fromkeys(site for t in operands for site in self._carried.get(t, ())))
        not_healed: frozenset[int] = frozenset().union(*(self._left.get(t, ()) for t in operands))
        for result, mine in zip(results, labels, strict=True):
            placed = bool(self.documents.placements(result.shape))
            mine = None if placed else mine
            if mine is not None:
                self._labels[result] = mine
            hits = self._hits(result, mine, not_healed)
            if placed and not hits and any(t in self._labels or t in self._carried for t in operands):
                self.stretch += 1  # back in the row
            lost = dict(scrambled)
            for k in hits:
                if k not in lost and self._addressed_by_data(name, operands, k):
                    lost[k] = self._blamed(name, carried)
            still = {k for k in (*lost, *not_healed) if k in hits or (not placed and self._differs_in(result, k))}
            if away := {k: origin for k, origin in lost.items() if k in still}:
                self._scramble(result, away)
            astray = {k for k in not_healed if k in still and k not in lost}
            fresh = {k: hit for k, hit in hits.items() if k not in still}
            if fresh:
                site = self._blamed(name, carried)
                self._report(site, fresh)
                left = {k for k in fresh if site in self.worlds[k].leave}
                self._heal(result, mine, hits, {*lost, *astray, *left})
                astray |= left
            elif not hits and not placed and mine is None and not lost and self._differs_but(result, astray):
                here = () if moves_slots(name) or is_slot_by_slot(name) else (Site(name, self.location()),)
                self._carried[result] = tuple(dict.fromkeys((*carried, *here)))
            if astray:
                self._left[result] = frozenset(astray)  # what was not healed goes its way

    def _report(self, site: Site, hits: dict[int, Hit]) -> None:
        mixing = self.found.setdefault(site, Mixing(site, self.stretch))
        mixing.calls += 1
        for world, hit in hits.items():
            mixing.seen.setdefault(world, hit)

    def _addressed_by_data(self, name: str, operands: list[torch.Tensor], number: int) -> bool:
        """Do tokens decide which slot goes where? Then slots of two worlds at one place are of different tokens."""
        if mixing_kind(name) == "order":
            return True
        return addresses(name) and any(self._differs_in(t, number) for t in operands[1:] if not t.is_floating_point())

    def _scramble(self, result: torch.Tensor, origins: dict[int, Site]) -> None:
        """From here on slots are those of other tokens in these worlds, until a result is clean again: tokens that were
        sorted by expert are put back. Nothing is said of what lies between."""
        self._scrambled[result] = origins
        self._labels.pop(result, None)
        self.scrambling.update(dict.fromkeys(origins.values()))

    def _labels_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        found = self._labels.get(tensor)
        return found if found is not None else self.documents.labels_of(tensor.shape)

    def _differs_but(self, tensor: torch.Tensor, without: Collection[int]) -> bool:
        return any(self._differs_in(tensor, k) for k in range(len(self.worlds)) if k not in without)

    def _differs_in(self, tensor: torch.Tensor, number: int) -> bool:
        world = self.in_world(tensor, number)
        return world is not tensor and (world.shape != tensor.shape or not torch.equal(world, tensor))

    def _hits(self, result: torch.Tensor, labels: torch.Tensor | None, not_healed: Collection[int]) -> dict[int, Hit]:
        """Worlds in which other documents differ. Of worlds that are ``not_healed`` only that is wanted, not where."""
        found: dict[int, Hit] = {}
        for k, (made, world) in enumerate(zip(self.worlds, self.in_worlds(result), strict=True)):
            if world is result or world.shape != result.shape or not result.numel():
                continue
            hit = None
            same = self.documents.equal_elsewhere(result, world, made.label) if k in not_healed else None
            if same is not None:
                hit = None if same else _SOMEWHERE
            elif labels is None:
                hit = self.documents.hit(result, world, made.label, self.noise)
            else:
                foreign = of_others(labels, made.label).expand(result.shape)
                mask, size = differing(result, world, foreign, self.noise)
                if mask is not None:
                    numbers = labels.expand(result.shape)[mask.expand(result.shape)].unique().tolist()
                    hit = Hit(mask, tuple(map(int, numbers)), torch.empty(0, dtype=torch.long), size)
            if hit is not None:
                found[k] = hit
        return found

    def _heal(
        self, result: torch.Tensor, labels: torch.Tensor | None, hits: dict[int, Hit], without: Collection[int]
    ) -> None:
        """Give documents that were not changed the base's values, but ``without`` some worlds."""
        worlds = self.in_worlds(result)
        for k, made in enumerate(self.worlds):
            if k in without:
                continue
            if labels is None:
                foreign = self.documents.foreign(result.shape, made.label, hits[k].dims if k in hits else ())
            else:
                foreign = of_others(labels, made.label)
            if foreign is None or worlds[k].shape != result.shape:
                continue
            healed = torch.where(foreign.to(result.device), result.detach(), worlds[k].detach())
            try:
                worlds[k].detach().copy_(healed)
            except RuntimeError:  # several of its elements share memory
                worlds[k] = healed

    def _blamed(self, name: str, carried: tuple[Site, ...]) -> Site:
        """The operation itself, unless it only brought together what others had mixed on the way."""
        if carried and (moves_slots(name) or is_slot_by_slot(name)):
            return carried[0]
        return Site(name, self.location())
