"""Python loops over the tokens of a row of constant length: are all their steps written alike?

::

    for t in range(x.shape[1]):
        state = step(state, x[:, t])
        out.append(state)

Torch writes down as many steps as the row has slots, and a document takes the first of them, as many as it has. That
is what the loop does for a document alone, unless the code looks at how long the row is: ``if t == T - 1``, ``t / T``.
One graph does not say what was a condition and what a number was made of. So every step must be the step before it,
with numbers that are the same, or larger by one as ``t`` is; what follows the last one must take from each step the
same. The first steps may differ: they are those of every document.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from packpass.semantics import call_of, example
from passes.isolate.kinds import MIXED, Merged, Row
from passes.isolate.reading import Reading
from passes.isolate.regions import Region
from passes.refused import Refused

_FIRST = 3
"""The first step that is compared with the one before, which reads states of steps that are no longer the first."""


class Steps:
    """The steps of the loops in a region: for each node the slot of the row that it belongs to, and its place."""

    def __init__(self, reading: Reading, region: Region) -> None:
        self.reading = reading
        self.slots = {node: slot for node in region.nodes if (slot := slot_of(reading, node)) is not None}
        self.lists: dict[int, list[fx.Node]] = {}
        self.place: dict[fx.Node, tuple[int, int]] = {}
        for node in region.nodes:
            found = [self.place[n][0] for n in node.all_input_nodes if n in self.place]
            found += [self.slots[node]] if node in self.slots else []
            if found:
                step = self.lists.setdefault(max(found), [])
                self.place[node] = max(found), len(step)
                step.append(node)

    def check(self) -> None:
        """Raises `Refused` where a step is not the one before it."""
        last = max(self.slots.values(), default=0)
        if len(set(self.slots.values())) < _FIRST:
            return
        for t in range(_FIRST, last):
            one, other = self.lists.get(t, []), self.lists.get(t - 1, [])
            if len(one) != len(other):
                self._refuse((one or other)[-1], t)
            for a, b in zip(one, other, strict=True):
                if not self._alike(a, b, t):
                    self._refuse(a, t)
        self._check_last(last)

    def _check_last(self, t: int) -> None:
        """The last step has no next one to work for, and behind it is what puts the steps together."""
        handed_on = self._handed_on(t - 1)
        other = [node for node in self.lists.get(t - 1, []) if node not in handed_on]
        one = self.lists[t]
        if len(one) < len(other):
            self._refuse(one[-1], t)
        for a, b in zip(one, other, strict=False):
            if not self._alike(a, b, t):
                self._refuse(a, t)
            self.place[a] = t, self.place[b][1]
        for k, node in enumerate(one[len(other) :]):
            if node in self.slots:
                self._refuse(node, t)
            self.place[node] = t, len(self.lists[t - 1]) + k
            self._check_gathered(node)

    def _handed_on(self, t: int) -> set[fx.Node]:
        """What a step computes for the next one alone."""
        found: set[fx.Node] = set()
        targets = [node.target for node in self.lists.get(t, [])]
        for node in reversed(self.lists.get(t, [])):
            ahead = [(self.place[user], user) for user in node.users if user in self.place and user not in found]
            regular = all(s == t + 1 and targets[p : p + 1] == [user.target] for (s, p), user in ahead)
            if node.users and regular and all(user in self.place for user in node.users):
                found.add(node)
        return found

    def _refuse(self, node: fx.Node, t: int) -> None:
        raise Refused(
            "mixes-documents",
            f"a loop over tokens does something else for token {t} of the row than for the one before it, which may be "
            "because of how long the row is: a document is not as long",
            node,
        )

    def _alike(self, a: fx.Node, b: fx.Node, t: int) -> bool:
        """Is ``a`` of step t what ``b`` is of the step before?"""
        if a.op != b.op or a.target != b.target or len(a.args) != len(b.args) or a.kwargs.keys() != b.kwargs.keys():
            return False
        pairs = [*zip(a.args, b.args, strict=True), *((a.kwargs[name], b.kwargs[name]) for name in a.kwargs)]
        return all(self._same(x, y, t) for x, y in pairs)

    def _same(self, x: Any, y: Any, t: int) -> bool:
        if isinstance(x, fx.Node) and isinstance(y, fx.Node):
            if x in self.place and y in self.place:
                (s, p), (r, q) = self.place[x], self.place[y]
                return x is y or (s - r == 1 and p == q)
            inner = x not in self.place and y not in self.place and x.op in ("call_function", "call_method")
            return x is y or (inner and self._alike(x, y, t))
        if isinstance(x, (tuple, list)) and isinstance(y, (tuple, list)):
            grown = len(x) == len(y) + 1 and len(y) > 1 and all(a is b for a, b in zip(x, y, strict=False))
            return grown or (len(x) == len(y) and all(self._same(a, b, t) for a, b in zip(x, y, strict=True)))
        if isinstance(x, slice) and isinstance(y, slice):
            return all(self._same(a, b, t) for a, b in zip(_ends(x), _ends(y), strict=True))
        same: bool = type(x) is type(y) and (x == y or (type(x) is int and x - y == 1))
        return same

    def _check_gathered(self, node: fx.Node) -> None:
        """What puts the steps together takes from every step, but the first, what it takes from the others."""
        for argument in node.args:
            if isinstance(argument, (tuple, list)):
                taken = [self.place[n] for n in argument if isinstance(n, fx.Node) and n in self.place]
                later = [(step, place) for step, place in taken if step >= _FIRST - 1]
                if len(later) >= _FIRST and len({place for _, place in later}) > 1:
                    self._refuse(node, later[-1][0])


def slot_of(reading: Reading, node: fx.Node) -> int | None:
    """The number of the one slot, or of the last of several, that a call takes from a row."""
    call = call_of(node)
    base = node.args[0] if call is not None and node.args else None
    if call is None or not isinstance(base, fx.Node):
        return None
    of = call_of(base)
    if of is not None and of.op == "unbind" and call.op == "getitem":
        row, dim, index = of.get("input"), of.get("dim", default=0), [node.args[1]]
        number = index[0] if _dim(reading, row) == dim % max(_rank(row), 1) else None
    else:
        row = base
        number = next(_numbers(call.op, node.args[1:], _dim(reading, row), _rank(row)), None)
    if type(number) is not int or _dim(reading, row) is None:
        return None
    kind = reading.kinds.get(row)
    inner = kind.inner if isinstance(kind, Merged) else 1
    return (number + reading.length * inner if number < 0 else number) // inner


def _dim(reading: Reading, node: Any) -> int | None:
    kind = reading.kinds.get(node) if isinstance(node, fx.Node) else None
    return kind.dim if isinstance(kind, (Row, Merged)) else reading.row_dim(example(node)) if kind is MIXED else None


def _rank(node: fx.Node) -> int:
    value = example(node)
    return value.dim() if isinstance(value, torch.Tensor) else 0


def _numbers(op: str, args: tuple[Any, ...], dim: int | None, rank: int) -> Iterator[Any]:
    """The slot that arguments name along a dimension, if they name one."""
    if op == "select":
        yield args[1] if len(args) == 2 and args[0] == dim else None
    elif op == "narrow":
        known = len(args) == 3 and args[0] == dim and type(args[1]) is int and type(args[2]) is int
        yield args[1] + args[2] - 1 if known else None
    elif args and op in ("getitem", "setitem"):
        index = args[0] if isinstance(args[0], tuple) else (args[0],)
        taken = sum(1 for at in index if at is not None and at is not Ellipsis)
        place = 0
        for at in index:
            if at is Ellipsis:
                place += rank - taken
            elif at is not None:
                if place == dim:
                    yield at.stop - 1 if isinstance(at, slice) and type(at.stop) is int and at.stop > 0 else at
                place += 1


def _ends(cut: slice) -> tuple[Any, Any, Any]:
    return cut.start, cut.stop, cut.step
