"""A graph with loops over documents, op by op, where branches decide what is done with a document.

A body with branches was traced once for each way through it (`packpass.capture.ways`). Here each document goes its own:
as the first traced iteration does, up to a branch that goes the other way now, and from there on as the iteration that
has taken it. Up to there both are the same, which is proven in front of all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.capture.assumed import EQUAL_SIZES
from packpass.capture.divisible import EQUAL_PARTS
from packpass.capture.lists import LACKING
from packpass.engine.copies import copy_graph
from packpass.engine.generic import (
    Iteration,
    NotReplayable,
    Proof,
    hoist_sizes,
    is_check,
    is_symbolic,
    only_checks,
    regions,
    shape_is_known,
    wants_lengths,
)
from packpass.engine.interpreter import Interpreter
from packpass.engine.replay import MADE_UP, depends_on, replay
from packpass.semantics.effects import effects_of


def reference(gm: fx.GraphModule, doubt: str) -> Callable[..., Any]:
    """A replay, op by op, to stand beside the rewritten graph, which raises for lengths that do not divide, or do not
    fit. Raises `NotReplayable`."""
    known = "" if doubt in (EQUAL_PARTS, EQUAL_SIZES) else doubt
    branched = any(node.target in markers.LOOP_BRANCH for node in gm.graph.nodes)
    try:
        return replay(copy_graph(gm) if branched else gm, lambda part, inputs: part.forward, known, beside=True)
    except NotReplayable:
        if not branched or known not in ("", LACKING):
            raise
    return ByWays(gm)


Outcomes = list[tuple[fx.Node, bool]]


class _Way:
    """One traced iteration: its nodes, and where to go on from a branch that goes the other way."""

    def __init__(self, iteration: Iteration) -> None:
        self.begin, body, _ = iteration
        self.own = {self.begin, *body}
        kept = [n for n in body if n.target in markers.LOOP_BRANCH or not only_checks(n) or _is_assumed(n)]
        self.body = [n for n in kept if not wants_lengths(n)]
        self.branches: Outcomes = [(n, bool(n.args[1])) for n in self.body if n.target in markers.LOOP_BRANCH]
        self.turns: dict[fx.Node, _Turn] = {}

    def outcomes(self) -> list[bool]:
        return [outcome for _, outcome in self.branches]


def _is_assumed(node: fx.Node) -> bool:
    """Is it a check of what capture takes for granted of a document, or what one is made of?"""
    if is_check(node):
        return not wants_lengths(node) and str(node.args[1]).startswith("packpass: ")
    return any(map(_is_assumed, node.users)) if only_checks(node) else False


class _Turn:
    """From one way to another, behind a branch: what the other takes for its own, and what it does from there on."""

    def __init__(self, way: _Way, branch: fx.Node, other: _Way, which: int) -> None:
        self.way, self.at = other, other.body.index(other.branches[which][0]) + 1
        self.again = [node for node in other.body[: self.at] if is_symbolic(node)]
        self.same = [(other.begin, way.begin)]
        self._proof = Proof()
        self._proof.pair(way.begin, other.begin)
        mine = way.body[: way.body.index(branch)]
        self._align(*(list(filter(_is_compared, nodes)) for nodes in (mine, other.body[: self.at])))

    def _align(self, mine: list[fx.Node], others: list[fx.Node]) -> None:
        """What both do in front of the branch is done; what only one of them does, as the other has no use for it, may
        be done again or not at all."""
        left, lone = list(mine), list[fx.Node]()
        for node in others:
            at = next((i for i, one in enumerate(left) if self._is_alike(one, node)), None)
            if at is None:
                lone.append(node)
                continue
            self._proof.pair(left[at], node)
            self.same.append((node, left[at]))
            lone += left[:at]
            del left[: at + 1]
        lone += left
        if lone and not all(effects_of(node).repeatable and not effects_of(node).writes for node in (*mine, *others)):
            raise NotReplayable("two ways through a loop differ in front of a branch")
        done = {own for own, _ in self.same}
        self.again = [n for n in self.way.body[: self.at] if n in self.again or (_is_compared(n) and n not in done)]

    def _is_alike(self, one: fx.Node, other: fx.Node) -> bool:
        try:
            self._proof.compare(one, other)
        except NotReplayable:
            return False
        return True


def _is_compared(node: fx.Node) -> bool:
    return not is_symbolic(node) and node.target not in markers.LOOP_BRANCH


class ByWays(Interpreter):
    """Runs a graph as it was captured; raises `NotReplayable` if that cannot be done, or a document goes a way that was
    not traced."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        loops = regions(gm.graph)
        hoist_sizes(gm.graph, loops)
        self.loops = {id_: _ways(iterations) for id_, iterations in regions(gm.graph).items()}
        self.inside = {node for ways in loops.values() for begin, body, end in ways for node in (begin, *body, end)}
        self.know_shapes(node for ways in self.loops.values() for way in ways for node in way.body)
        self.lists: dict[Any, list[fx.Node]] = {}
        """Per loop: the lists that it fills."""
        for node in gm.graph.find_nodes(op="call_function", target=markers.LIST_COLLECT):
            self.lists.setdefault(node.args[2], []).append(node)

    def __call__(self, *inputs: Any) -> Any:
        env: dict[fx.Node, Any] = {collect: [] for lists in self.lists.values() for collect in lists}
        feed, done = iter(inputs), set[Any]()
        for node in self.part.graph.nodes:
            if node.op == "output":
                return self.value(node.args[0], env)
            if node.target is markers.LOOP_BEGIN and node.args[1] not in done:
                done.add(node.args[1])
                splits: dict[fx.Node, Any] = {}
                for i in range(int(self.value(node.args[0], env))):
                    self._document(node.args[1], i, env, splits)
            elif node.op == "placeholder":
                env[node] = next(feed)
            elif node not in self.inside and node not in env and not _is_made_up(node):
                env[node] = self.call(node, env, {})
        raise AssertionError

    def _document(self, loop: Any, i: int, env: dict[fx.Node, Any], splits: dict[fx.Node, Any]) -> None:
        way, at, sizes = self.loops[loop][0], 0, dict[Any, int]()
        env[way.begin] = i
        while at < len(way.body):
            node = way.body[at]
            at += 1
            if node.target in markers.LOOP_SKIP:
                if bool(self.value(node.args[0], env)) == node.args[1]:
                    return
            elif node.target in markers.LOOP_BRANCH:
                if bool(self.value(node.args[0], env)) != node.args[1]:
                    turn = way.turns.get(node)
                    if turn is None:
                        raise NotReplayable("a document goes a way through a loop that was not traced")
                    env.update({own: env[other] for own, other in turn.same})
                    for one in turn.again:
                        env[one] = self.call(one, env, splits)
                    way, at, sizes = turn.way, turn.at, {}
            else:
                value = env[node] = self.call(node, env, splits)
                if isinstance(value, torch.Tensor):
                    self.as_traced(node, value, sizes)
        which = self.loops[loop].index(way)
        for collect in self.lists.get(loop, ()):
            left = markers.collected_in(collect, which)
            if left not in self.inside or left in way.own:  # else another way adds to the list, and this one does not
                env[collect].append(self.value(left, env))


def _is_made_up(node: fx.Node) -> bool:
    """Is it an assertion about a size that capture made up, or what only such ones use?"""
    if is_check(node):
        return depends_on(node, MADE_UP)
    return only_checks(node) and all(map(_is_made_up, node.users))


def _ways(iterations: list[Iteration]) -> list[_Way]:
    """The ways through a loop; raises `NotReplayable`."""
    ways = [_Way(iteration) for iteration in iterations]
    own = [{way.begin, *iteration[1]} for way, iteration in zip(ways, iterations, strict=True)]
    every = set[fx.Node]().union(*own)
    for way, nodes in zip(ways, own, strict=True):
        for node in way.body:
            shape_is_known(node)
            if any(n in every and n not in nodes for n in node.all_input_nodes):
                raise NotReplayable("one traced iteration uses what another has made")
            known = (*nodes, *(user for user in node.users if user.target in (markers.LOOP_END, markers.LIST_COLLECT)))
            if any(user not in known and not only_checks(user) for user in node.users):
                raise NotReplayable(f"{node.name} of one document is used after the loop")
        for which, (branch, _) in enumerate(way.branches):
            wanted = [*way.outcomes()[:which], not way.outcomes()[which]]
            other = next((one for one in ways if one.outcomes()[: which + 1] == wanted), None)
            if other is not None:
                with contextlib.suppress(NotReplayable):  # where no document turns there, it does not matter
                    way.turns[branch] = _Turn(way, branch, other, which)
    return ways
