"""Losses whose targets are cut from a packed row by a shift and changed before the loss looks at them.

Before::

    targets = labels[:, 1:].clone()
    targets[mask[:, 1:] == 0] = -100
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten())

After::

    within = packed_roll(ones(T, bool), cu_seqlens, -1, 0, False)[:-1]     # is the next slot the same document's?
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), torch.where(within, targets.flatten(), -100))

Why it is safe: slot p of the targets was made of slot p + k of packed rows alone, and the score it is compared with of
slot p; where these belong to different documents the loss ignores the pair, and nothing else changes.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import fx

from packpass.layout import Layouts, Packing
from packpass.semantics import argument, example, op_name
from packpass.semantics.losses import OF_CLASSES
from passes.pack_shifts.decide import Cuts, made_from, part_of_row
from passes.pack_shifts.interpret import Interpreter, ignored
from passes.pack_shifts.pieces import ZERO
from passes.pack_shifts.rewrite import Rewriter
from passes.pack_shifts.shards import CUT, shards_of
from passes.pack_shifts.values import Left, View, position

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True)
class LossFound:
    """A loss that pairs scores with the tokens ``by`` slots later; ``dim`` is the row's dimension of the targets,
    ``row`` the packed row and dimension that they were cut from."""

    user: fx.Node
    targets: fx.Node
    dim: int
    by: int
    row: tuple[fx.Node, int]
    packing: Packing

    @property
    def origin(self) -> fx.Node:
        return self.user


def find_losses(run: Interpreter, layouts: Layouts) -> list[LossFound]:
    """Losses of the graph whose targets are no row of their own; changes nothing."""
    out = []
    for node in run.graph.nodes:
        if op_name(node) in OF_CLASSES:
            found = _found(node, run, layouts)
            if found is not None:
                out.append(found)
    return out


def _found(loss: fx.Node, run: Interpreter, layouts: Layouts) -> LossFound | None:
    targets = argument(loss, 1, "target")
    value = example(targets)
    if not isinstance(targets, fx.Node) or not isinstance(value, torch.Tensor) or value.dtype != torch.int64:
        return None
    view = run.view(targets)
    if view is not None and view.chain:
        return None  # the cut itself: a shift like any other
    cuts = Cuts(loss, run, layouts)
    for dim in range(value.dim()):
        rows = cuts.of(targets, dim)
        scores = cuts.of_scores(dim)
        packings = {packing for _, packing in (*rows, *scores)}
        if not rows or not scores or len(packings) != 1 or None in packings:
            continue
        starts = {cut.start for cut, _ in rows}
        whole = all(_whole_rest(cut) for cut, _ in rows)
        if len(starts) != 1 or not whole or {cut.start for cut, _ in scores} != {ZERO}:
            continue
        (start,), (packing,) = starts, packings
        if start.n == 0 and start.c > 0 and packing is not None:
            cut = rows[0][0]
            at = layouts.packed_dim(cut.base)
            assert at is not None
            return LossFound(loss, targets, dim, -start.c, (cut.base, at[0]), packing)
    return None


def _whole_rest(cut: View) -> bool:
    """Does a cut reach to the end of its row?"""
    end = position(example(cut.store.root).shape[cut.store.dim], cut.store.size)
    return end is not None and cut.stop == end and cut.start > ZERO and cut.start.n == 0


def check_loss(found: LossFound) -> Left | None:
    """``(code, reason)`` why this loss is left alone, or None."""
    value, (row, dim) = example(found.targets), found.row
    if shards_of(found.packing) is not None:
        return CUT
    far = part_of_row(found.by, example(row).shape[dim])
    if far is not None:
        return far
    several = any(n != 1 for d, n in enumerate(example(row).shape) if d != dim and isinstance(n, int))
    if several or any(isinstance(n, torch.SymInt) for d, n in enumerate(value.shape) if d != found.dim):
        return Left("ambiguous-rows", f"{row.name} has several rows; {found.packing.text} may cut each or all of them")
    dependent = made_from(found.packing.boundaries)
    stack, seen = [found.targets], set[fx.Node]()
    while stack:
        node = stack.pop()
        if node in dependent:
            return Left(
                "already-bounded",
                "the code itself treats the slots at boundaries, by a mask or index made from them",
            )
        if node not in seen and node is not row:
            seen.add(node)
            stack += node.all_input_nodes
            stack += [user for user in node.users if user.target is operator.setitem and user < found.user]
    return None


def rewrite_loss(rewriter: Rewriter, found: LossFound, cu: fx.Node, padded: fx.Node | None) -> None:
    """Targets that belong to another document than their score become the number that the loss ignores."""
    (row, dim), value = found.row, example(found.targets)
    with rewriter.graph.inserting_before(found.user):
        total = rewriter.total(row, dim)
        cu, padded = rewriter.checked(cu, padded, total, example(row).detach(), found.packing.kind, found.user)
        ones = rewriter.call("new_ones", found.targets, (total,), dtype=torch.bool, method=True)
        within = rewriter.call(_ops.packed_roll.default, ones, cu, found.by, -1, False, padded)
        kept: Any = total + found.by if isinstance(total, int) else rewriter.call(operator.sub, total, -found.by)
        within = rewriter.call(torch.narrow, within, 0, 0, kept)
        for _ in range(value.dim() - 1 - found.dim):
            within = rewriter.call("unsqueeze", within, -1, method=True)
        masked = rewriter.call(torch.where, within, found.targets, ignored(found.user))
    found.user.replace_input_with(found.targets, masked)
