"""Exchanges of code in which the ranks of a group differ: no pass puts anything in their place, wherever they come up.

Where ranks do not exchange alike in a loop (`packpass.ranks.alike`), its frame is traced again, and then it may come in
pieces: graphs without a loop, with the exchanges of all documents side by side, which look like any others, and of
which the ranks would join what does not fit together. So what is known is not kept with the frame but by the exchanges
themselves: by the user's lines that lead to each of them. A piece begins at one of these lines, so its exchanges have
the last of them only.

Every rank has heard the same answer, and compiles its pieces after it: so all leave them. Nobody is asked again, as
the pieces need not be the same on two ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from packpass._options import Options
from packpass._passes import PASSES
from packpass.ranks.collectives import Collective, collectives

EXCHANGES = tuple(dict.fromkeys(p.name for p in PASSES if p.exchanges))
"""The passes that put something in place of what ranks exchange."""

_apart: set[tuple[str | None, tuple[str, ...]]] = set()
"""Group, and the lines that lead to an exchange, from each of them on."""


def exchanges_of(gm: fx.GraphModule) -> list[Collective]:
    """The exchanges of a graph as they are written: ask before the passes."""
    return [c for c in collectives(gm) if c.exchange]


def leave(exchanges: Sequence[Collective]) -> None:
    """The ranks differ in the graph of these."""
    _apart.update((c.group, c.way[i:]) for c in exchanges for i in range(len(c.way)))


def are_left(exchanges: Sequence[Collective]) -> bool:
    """Is one of these from code in which ranks differ?"""
    return any((c.group, c.way) in _apart for c in exchanges)


def without_exchanges(settings: Options) -> Options:
    """The options of a graph whose exchanges stay as they are written."""
    return settings.without(*EXCHANGES)
