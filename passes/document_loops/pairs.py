"""Values for every two slots of a document: masks, distances and scores of attention that is written out.

::

    scores = q[s:e] @ k[s:e].T * scale
    hidden = torch.ones(e - s, e - s).triu(1).bool()
    y[s:e] = scores.masked_fill(hidden, -inf).softmax(-1) @ v[s:e]

Such a value has two dimensions of the document's length, and no whole-row form. It is followed until attention takes
it up. What a mask holds for two slots must depend on nothing but how far they are apart, and on that only up to some
distance: then the numbers of finitely many distances say everything, and what the body does to the mask is done to
these numbers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, fx

from packpass.ops._pack_mask import HIDDEN
from packpass.semantics.pointwise import COPIES
from passes.document_loops.terms import Apply, Positions, Slice, Term
from passes.refused import Refused, refuse_stale

_FARTHEST = 4096
"""Distances that are told apart."""


@dataclasses.dataclass(frozen=True, eq=False)
class Band:
    """The number of two slots by their distance, place of the first less that of the second: ``values[d + reach]`` for
    ``-reach <= d <= reach``, and beyond that what the nearest of these have."""

    values: Tensor

    @property
    def reach(self) -> int:
        return self.values.shape[0] // 2

    def widened(self, reach: int) -> Tensor:
        """The values up to another distance."""
        at = torch.arange(-reach, reach + 1).clamp(-self.reach, self.reach) + self.reach
        return self.values[at]

    def turned(self) -> Band:
        """First and second slot exchanged."""
        return Band(self.values.flip(0))


@dataclasses.dataclass(frozen=True, eq=False)
class Distance:
    """``sign * d + shift``, or its absolute value: the distance itself, which only a comparison makes a mask."""

    sign: int
    shift: int
    absolute: bool = False

    def values(self, reach: int) -> Tensor:
        found = self.sign * torch.arange(-reach, reach + 1) + self.shift
        return found.abs() if self.absolute else found


@dataclasses.dataclass(frozen=True, eq=False)
class Sum:
    """A number of the first slot and one of the second, added: rows that line up with the dimensions of the pairs, and
    how many dimensions they have."""

    first: tuple[Term, int]
    second: tuple[Term, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Side:
    """What scores are a product of: a row, a letter for each of its dimensions, and that of its slots."""

    term: Term
    letters: tuple[str, ...]
    slots: str


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """``scale * (first . second) + band + rows``; ``letters`` are those of the dimensions of the pairs.

    ``sizes`` are those of all letters, of the sides as well. ``weights``: the letter of the slots over which a softmax
    was taken, "" before.
    """

    first: Side
    second: Side
    letters: tuple[str, ...]
    sizes: dict[str, Any]
    dtype: torch.dtype
    scale: float = 1.0
    band: Band | None = None
    rows: Sum | None = None
    weights: str = ""


What = Band | Distance | Sum | Scores


@dataclasses.dataclass(eq=False)
class Pairs:
    """A tensor with an entry for every two slots of the document, along two of its dimensions (negative, in order)."""

    what: What
    rank: int
    dims: tuple[int, int]
    parent: tuple[Pairs, int] | None = None
    """Set for a view: it may be read while the parent is unchanged."""
    version: int = 0

    def read(self, node: fx.Node) -> What:
        """What it holds; refuses a view of what has changed since."""
        refuse_stale(self, node)
        return self.what

    def write(self, what: What, node: fx.Node) -> None:
        """Change it in place."""
        if self.parent is not None:
            raise Refused("write-through-view", "a view, or a tensor that may be one, is changed in place", node)
        self.what = what
        self.version += 1


def constant(number: Any, dtype: torch.dtype) -> Band:
    """One number for all pairs."""
    return Band(torch.full((3,), number, dtype=dtype))


def banded(values: Tensor, node: fx.Node) -> Band:
    """A band of these values; as few of them as say the same."""
    if values.shape[0] > 2 * _FARTHEST + 1:
        raise Refused("no-rule", f"a mask that tells distances of more than {_FARTHEST} slots apart has no rule", node)
    return Band(values)


# === Places of slots =========================================================================================


def place(term: Any) -> tuple[bool, int] | None:
    """``(counted from the document's start, number added)`` of a row that holds the place of each of its slots."""
    if isinstance(term, Positions):
        return (term.per_document, term.start) if not term.dtype.is_floating_point else None
    if not isinstance(term, Apply) or not term.args:
        return None
    inner = place(term.args[0])
    name = getattr(term.target, "__name__", term.target)
    if inner is None or term.kwargs:
        return None
    if name == "getitem" and _only_adds_axes(term.args[1]):
        return inner
    if name == "unsqueeze" or (name in COPIES and term.args[1:] in ((), (torch.int64,))):
        return inner
    if name in ("add", "sub") and len(term.args) == 2 and type(term.args[1]) is int:
        return inner[0], inner[1] + (term.args[1] if name == "add" else -term.args[1])
    return None


def _only_adds_axes(index: Any) -> bool:
    entries = index if isinstance(index, tuple) else (index,)
    return all(e is None or e is Ellipsis or e == Slice(None, None, None) for e in entries)


# === What a mask shows =======================================================================================


@dataclasses.dataclass(frozen=True)
class Visible:
    """The keys that a query sees: from ``left`` slots before it to ``right`` behind it; None: without a limit."""

    left: int | None
    right: int | None

    @property
    def causal(self) -> bool:
        return self.right == 0

    @property
    def window(self) -> tuple[int, int]:
        """As `varlen_attention` takes it, beside ``is_causal``."""
        return -1 if self.left is None else self.left, -1 if not self.right else self.right


def visible(band: Band | None, query_first: bool, node: fx.Node) -> Visible:
    """Which keys a mask that is added to scores shows; refuses one that does something else."""
    if band is None:
        return Visible(None, None)
    values = (band if query_first else band.turned()).values.double()  # by query less key
    shown, hidden = values == 0, values <= HIDDEN
    if not bool((shown | hidden).all()):
        raise Refused("no-rule", "a mask adds other than 0 or at most -9000 to attention scores", node)
    reach = band.reach
    seen = [d - reach for d in range(2 * reach + 1) if bool(shown[d])]
    if 0 not in seen or seen != list(range(seen[0], seen[-1] + 1)):
        raise Refused("no-rule", "a mask hides the query's own slot, or keys between those that it shows", node)
    left = None if seen[-1] == reach else seen[-1]
    right = None if seen[0] == -reach else -seen[0]
    return Visible(left, right)
