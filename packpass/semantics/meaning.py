"""What becomes of every axis of every operand of a call: the types.

The result of a call is described by *loops*, as in einops or einsum. An axis of the result runs along one loop, along
several (a flattened axis, the outermost first), or along none (one slot). An axis of an operand is read along loops,
too. Two axes with the same loop have their slots at the same places: that is all that ``linear``, ``transpose``,
``einsum`` and ``softmax`` have to say::

    linear      input (t, i)   weight (o, i)   ->  (t, o)       i: CONTRACTED
    transpose   input (a, b)                   ->  (b, a)
    flatten     input (a, b)                   ->  (a·b)
    softmax     input (t, c)                   ->  (t, c)       c: MIXED
    x[..., 2:]  input (t, Cut(2) of c)         ->  (t, c)
    roll        input (Rolled(1) of t)         ->  (t)
    cat         a (Joined(0) of t)  b (Joined(4) of t)  ->  (t)
    embedding   input (t)   weight (Looked, e) ->  (t, e)

A loop without a role treats every slot by itself. No entry for an operation is no meaning; `meaning_of` never guesses,
and `tests/semantics` compares every entry with what torch does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from packpass._compat import statically_known_true
from packpass.semantics.call import Call

# === How an operand's axis is read ===========================================================================


@dataclasses.dataclass(frozen=True)
class How:
    """Where slot i along the loop finds its slot of the operand's axis."""


@dataclasses.dataclass(frozen=True)
class Kept(How):
    """At i."""


@dataclasses.dataclass(frozen=True)
class Cut(How):
    """At ``start + step * i``."""

    start: Any
    step: int = 1


@dataclasses.dataclass(frozen=True)
class Selected(How):
    """At one slot; the axis is gone."""

    index: Any


@dataclasses.dataclass(frozen=True)
class Rolled(How):
    """At ``i - shift``, around the end."""

    shift: Any


@dataclasses.dataclass(frozen=True)
class Flipped(How):
    """At the other end."""


@dataclasses.dataclass(frozen=True)
class Joined(How):
    """At ``(i - offset) / step`` where there is such a slot; the rest of the result comes from elsewhere."""

    offset: Any
    step: int = 1


@dataclasses.dataclass(frozen=True)
class Padded(How):
    """At ``i - before`` where there is such a slot, else it is ``fill``."""

    before: Any
    after: Any
    fill: Any


@dataclasses.dataclass(frozen=True)
class Looked(How):
    """Where the values of the operands ``by`` say: any slot."""

    by: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Sent(How):
    """The other way round: the slot goes where the values of the operands ``by`` say."""

    by: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Unknown(How):
    """Nothing is known: a size may be one or not, or slots are regrouped across axes."""


KEPT, FLIPPED, UNKNOWN = Kept(), Flipped(), Unknown()

# === What happens along a loop ===============================================================================


@dataclasses.dataclass(frozen=True)
class Role:
    """What the operation ``op`` does along a loop: it is not slot by slot."""

    op: str


@dataclasses.dataclass(frozen=True)
class Reduced(Role):
    """Slots are put together. ``identity``: a slot with this changes nothing (None: there is no such value)."""

    identity: Any = None
    counts: bool = False
    """Does it count the slots (a mean)?"""


@dataclasses.dataclass(frozen=True)
class Scanned(Role):
    """Slot i depends on the slots up to i."""


@dataclasses.dataclass(frozen=True)
class Contracted(Role):
    """Products of two operands are summed."""


@dataclasses.dataclass(frozen=True)
class Mixed(Role):
    """Every slot may depend on every other."""

    together: bool = False
    """Do slots of one place belong together for all that: keys and values, slots that are filled in order?"""


@dataclasses.dataclass(frozen=True)
class Addressed(Role):
    """Slots stay where they are, each by itself, but are told apart by their numbers (one that is written, a triangle
    that is cut out): a part of the axis is not treated like that part of the whole."""


# === Meanings ================================================================================================


@dataclasses.dataclass(frozen=True)
class Axis:
    """One axis of an operand: the loops along which it is read (the outermost first), and how."""

    loops: tuple[int, ...] = ()
    how: How = KEPT


ONE = Axis()
"""An axis of one slot, which everything sees."""


@dataclasses.dataclass(frozen=True)
class Relation:
    """How one result of a call depends on its operands."""

    operands: tuple[tuple[Axis, ...] | None, ...]
    """For every operand of the call its axes; None for an operand whose slots line up with nothing, as it gives a dtype
    only. (Whether the contents of an operand are read is `Call.unread`.)"""
    result: tuple[tuple[int, ...], ...]
    sizes: Mapping[int, Any]
    roles: Mapping[int, Role] = dataclasses.field(default_factory=dict)

    def fate(self, operand: int, axis: int) -> How | Role | tuple[int, ...]:
        """What becomes of an axis: how it is read if not slot by slot, else the role of its loop, else the axes of the
        result that it is (a part of): none for an axis of one slot."""
        axes = self.operands[operand]
        if axes is None:
            return UNKNOWN
        at = axes[axis]
        if at.how != KEPT:
            return at.how
        roles = [self.roles[loop] for loop in at.loops if loop in self.roles]
        if roles:
            return roles[0]
        return tuple(j for j, loops in enumerate(self.result) if set(at.loops) & set(loops))

    def in_order(self) -> bool:
        """Do the slots of the first operand keep their order, so that only sizes change?"""
        axes = self.operands[0] or ()
        if any(isinstance(role, Mixed) and role.op == "reshape" for role in self.roles.values()):
            return True
        before = [loop for axis in axes for loop in axis.loops]
        after = [loop for loops in self.result for loop in loops]
        return before == after and all(axis.how == KEPT for axis in axes)

    def kept(self) -> list[tuple[int, int | None, tuple[tuple[int, int], ...]]]:
        """``(loop, axis of the result, ((operand, axis), ...))`` for every loop that is whole axes, slot by slot:
        slots of these are at the same places. The axis of the result is None if the loop is reduced."""
        found: dict[int, list[tuple[int, int]]] = {}
        for k, axes in enumerate(self.operands):
            for a, axis in enumerate(axes or ()):
                if axis.how == KEPT and len(axis.loops) == 1:
                    found.setdefault(axis.loops[0], []).append((k, a))
        to = {loops[0]: j for j, loops in enumerate(self.result) if len(loops) == 1}
        return [(loop, to.get(loop), tuple(axes)) for loop, axes in found.items()]


@dataclasses.dataclass(frozen=True)
class Traits:
    """What else there is to know of a call."""

    random: bool = False
    """Does it draw random numbers?"""
    raises: frozenset[str] = frozenset()
    """Arguments that may make it raise by what a slot nobody asked for holds: indices, divisors, probabilities."""
    zero_gradient: frozenset[str] = frozenset()
    """Arguments whose gradient is 0 at slots that nobody reads, whatever these hold."""
    reorders: bool = False
    """May the last bits of a result depend on how many slots there are beside?"""
    singular: bool = False
    """Are gradients of other operands not finite where an operand is the same number throughout (a variance of 0)?"""


@dataclasses.dataclass(frozen=True)
class Meaning:
    """What a call means: one relation for every result."""

    family: str
    relations: tuple[Relation, ...]
    traits: Traits = Traits()
    contents: Any = None
    """Of what the call makes: `Uniform`, `Iota`, or None."""

    @property
    def counts(self) -> bool:
        """Does it count slots anywhere?"""
        roles = (role for relation in self.relations for role in relation.roles.values())
        return any(isinstance(role, Reduced) and role.counts for role in roles)


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Every slot holds this value."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Uninitialised:
    """Whatever was in memory."""


@dataclasses.dataclass(frozen=True)
class Iota:
    """Slot i holds ``start + step * i``."""

    start: Any
    step: Any


Entry = Callable[[Call], Meaning | None]
"""What an operation means; None for a form of it that is not understood."""

# === Making them =============================================================================================


class Relating:
    """Puts together the relation of one result: loops, then the axes of operands and of the result.

    Operands that are not given a relation line up with nothing if their contents are not read; else there is no
    relation, so that an entry which forgets an operand has no meaning.
    """

    def __init__(self, call: Call, item: int = 0) -> None:
        self.call, self.item = call, item
        self.sizes: dict[int, Any] = {}
        self.roles: dict[int, Role] = {}
        self.axes: dict[int, tuple[Axis, ...]] = {}
        self.result: list[tuple[int, ...]] = []

    def loop(self, size: Any, role: Role | None = None) -> int:
        """A new loop."""
        loop = len(self.sizes)
        self.sizes[loop] = size
        if role is not None:
            self.roles[loop] = role
        return loop

    def axis(self, size: Any, role: Role | None = None) -> Axis:
        """An axis along a loop of its own; along none if it has one slot."""
        return ONE if is_one(size) else Axis((self.loop(size, role),))

    def from_result(self, shape: Iterable[Any] | None = None) -> None:
        """A loop for every axis of the result."""
        shape = self.call.results[self.item].shape if shape is None else shape
        self.result = [() if is_one(size) else (self.loop(size),) for size in shape]

    def aligned(self, operand: int, back: int = 0) -> None:
        """An operand whose axes line up with the result's from the right (``back``: but for so many), broadcast."""
        value = self.call.operands[operand].value
        axes = []
        for d, size in enumerate(value.shape):
            to = len(self.result) - back - value.dim() + d
            axes.append(self.along(size, self.result[to]) if to >= 0 else self.axis(size, Mixed("broadcast")))
        self.axes[operand] = tuple(axes)

    def along(self, size: Any, loops: tuple[int, ...]) -> Axis:
        """An axis of this size along these loops, or of one slot, or not known to be either."""
        if is_one(size):
            return ONE
        total: Any = 1
        for loop in loops:
            total = total * self.sizes[loop]
        return Axis(loops) if same_size(size, total) else Axis((), UNKNOWN)

    def done(self) -> Relation | None:
        """The relation; None if an operand was forgotten."""
        unread = {k for k, o in enumerate(self.call.operands) if o.argument in self.call.unread}
        if set(range(len(self.call.operands))) - unread - set(self.axes):
            return None
        operands = tuple(self.axes.get(k) for k in range(len(self.call.operands)))
        return Relation(operands, tuple(self.result), self.sizes, self.roles)


def meaning(
    family: str, relations: Relation | Sequence[Relation | None] | None, traits: Traits = Traits(), contents: Any = None
) -> Meaning | None:
    """A meaning, if every result has a relation."""
    if not isinstance(relations, (tuple, list)):
        relations = (relations,)  # type: ignore[assignment]
    known = tuple(r for r in relations if isinstance(r, Relation))  # type: ignore[union-attr]
    return Meaning(family, known, traits, contents) if len(known) == len(relations) else None  # type: ignore[arg-type]


def is_one(size: Any) -> bool:
    """Is a size known to be one?"""
    return isinstance(size, int) and size == 1


def same_size(a: Any, b: Any) -> bool:
    """Are two sizes known to be equal?"""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt) and a.node.expr == b.node.expr:
        return True
    return statically_known_true(a == b)


def axis_index(dim: Any, rank: int) -> int | None:
    """A dimension counted from the front; None if it is no constant of that rank."""
    if isinstance(dim, bool) or not isinstance(dim, int) or not -rank <= dim < rank:
        return None
    return dim % rank


def axis_indices(dims: Any, rank: int) -> tuple[int, ...] | None:
    """Dimensions counted from the front: all of them for None; None if they are no constants."""
    if dims is None:
        return tuple(range(rank))
    found = [axis_index(d, rank) for d in (dims if isinstance(dims, (tuple, list)) else (dims,))]
    return None if None in found else tuple(d for d in found if d is not None)


def tensor(value: Any) -> torch.Tensor | None:
    return value if isinstance(value, torch.Tensor) else None
