"""Exchanges of code in which the ranks of a group differ: no pass puts anything in their place, wherever they come up.

Where ranks do not exchange alike in a loop (`packpass.ranks.alike`), its frame is traced again, and then it may come in
pieces: graphs without a loop, with the exchanges of all documents side by side, which look like any others, and of
which the ranks would join what does not fit together. So what is known is not kept with the frame but by the exchanges
themselves: by the user's lines that lead to each of them. A piece begins at one of these lines, so its exchanges have
the last of them only.

Every rank has heard the same answer, and compiles its pieces after it: so all leave them. Nobody is asked again, as
the pieces need not be the same on two ranks. So it is with exchanges in straight lines that ranks do not join alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from packpass._options import Options
from packpass._passes import PASSES
from packpass.decisions.records import Refusal, Rewrite
from packpass.ranks.collectives import Collective, collective, collectives

EXCHANGES = tuple(dict.fromkeys(p.name for p in PASSES if p.exchanges))
"""The passes that put something in place of what ranks exchange."""

SIDE_BY_SIDE = "fuse_all_to_all"
"""The one that joins exchanges which are in no loop."""

_apart: set[tuple[str | None, tuple[str, ...]]] = set()
"""Group, and the lines that lead to an exchange, from each of them on."""


def exchanges(result: Rewrite | Refusal) -> bool:
    """Does a decision concern what ranks exchange? One about a captured loop does as well, if the ranks must agree."""
    agreed = isinstance(result, Rewrite) and result.claims.captured_loop and bool(result.claims.agreement)
    return result.rule in EXCHANGES or agreed


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


def left_side_by_side(gm: fx.GraphModule, settings: Options) -> Refusal | None:
    """Why exchanges of a graph that nobody has joined stay apart, where there are several: a function with one exchange
    forward and one backward is one of them."""
    if not settings.runs(SIDE_BY_SIDE):
        return None
    calls = [found for node in gm.graph.nodes if (found := _exchanges_in(gm, node))]
    if len(calls) < 2:
        return None
    reason = (
        f"{len(calls)} exchanges: other ranks of the group do something else here, or have gradients where this one "
        "has none or the other way round; or they did when this code was compiled before"
    )
    return Refusal(SIDE_BY_SIDE, "ranks-differ", reason, calls[0][0].location)


def _exchanges_in(gm: fx.GraphModule, node: fx.Node) -> list[Collective]:
    """What one call of the graph itself exchanges, so far as exchanges in no loop may be joined."""
    if node.op != "call_function":
        return []
    bodies = [getattr(gm, str(n.target), None) for n in node.all_input_nodes if n.op == "get_attr"]
    inside = [c for body in bodies if isinstance(body, fx.GraphModule) for c in collectives(body)]
    own = collective(node)
    return [c for c in ([own] if own is not None else inside) if c.ours or c.joinable]
