"""Which element of which boundary vector a node is: looks through slices and copies of ``cu_seqlens``."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.semantics import call_of, contents_of, example, op_name
from packpass.semantics.effects import mutated_after
from packpass.semantics.integers import computed
from packpass.semantics.meaning import Uniform
from packpass.semantics.memory import copied
from packpass.semantics.names import name_of_target
from packpass.semantics.pointwise import OF_INTEGERS
from passes.document_loops.inequalities import length_in
from passes.document_loops.integers import Affine, Bound, Boundaries, Derived, Index
from passes.document_loops.machine import Machine


def unchanged(source: fx.Node, since: fx.Node) -> bool:
    """Does ``source`` still hold, wherever it is used later, what it held when ``since`` copied it?"""
    return not mutated_after(source.graph, source, since)


def boundary_vector(node: fx.Node) -> tuple[fx.Node, int, bool]:
    """``(root, offset, lengths)``: element i of ``node`` is ``root[i + offset]``; ``lengths`` marks a length vector.

    Looks through slices such as ``cu[1:]`` and through copies that keep every value.
    """
    offset = 0
    while True:
        fake = example(node)
        source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        if source is None or not isinstance(example(source), torch.Tensor) or example(source).dim() != 1:
            break
        own = example(source).dtype  # a copy of other numbers as integers lacks what is behind their points
        kept = copied(node) is source and (
            fake.dtype is own or (fake.dtype is torch.int64 and not own.is_floating_point)
        )
        # A copy that is written has boundaries of its own.
        if kept and unchanged(source, node) and unchanged(node, node.next):
            node = source
            continue
        if _divided_by_one(node) and unchanged(source, node) and unchanged(node, node.next):
            node = source
            continue
        if op_name(node) == "getitem" and isinstance(node.args[1], slice):
            cut = node.args[1]
            start_ok = cut.start is None or (isinstance(cut.start, int) and cut.start >= 0)
            stop_ok = cut.stop is None or (isinstance(cut.stop, int) and cut.stop < 0)
            if cut.step in (None, 1) and start_ok and stop_ok:
                offset += cut.start or 0
                node = source
                continue
        break
    return _first_quotient(node), offset, lengths_of(node) is not None


def _first_quotient(node: fx.Node) -> fx.Node:
    """The first of the quotients of one vector by one number: lists that are made of ``cu[i] // k`` each for itself are
    cut at the same places. Any other vector as it is."""
    source, by = node.args if node.target is operator.floordiv and len(node.args) == 2 else (None, None)
    if not isinstance(source, fx.Node) or type(by) is not int or not unchanged(node, node.next):
        return node
    root, offset, _ = boundary_vector(source)
    if offset or not isinstance(example(root), torch.Tensor) or not unchanged(root, root.next):
        return node
    first, copies = node, [root]
    while copies:
        vector = copies.pop()
        for user in vector.users:
            if user.target is operator.floordiv and user.args == (vector, by):
                first = min(first, user) if unchanged(user, user.next) else first
            elif copied(user) is vector and boundary_vector(user)[:2] == (root, 0):
                copies.append(user)
    return first


def _divided_by_one(node: fx.Node) -> bool:
    """Lengths on each of the ranks of a group that has only one."""
    return (
        op_name(node) in ("floor_divide", "mul")
        and len(node.args) == 2
        and type(node.args[1]) is int
        and (node.args[1] == 1 and not node.kwargs)
    )


def lengths_of(node: fx.Node) -> fx.Node | None:
    """``cu`` if ``node`` is ``cu[1:] - cu[:-1]``, ``cu.diff()`` or ``torch.diff(cu)``."""
    name = op_name(node)
    if name not in ("diff", "sub") or not unchanged(node, node.next):
        return None
    if name == "diff" and len(node.args) == 1 and not node.kwargs and isinstance(node.args[0], fx.Node):
        return boundary_vector(node.args[0])[0] if unchanged(node.args[0], node) else None
    if name != "diff" and len(node.args) == 2 and not node.kwargs:
        a, b = node.args
        if (
            isinstance(a, fx.Node)
            and isinstance(b, fx.Node)
            and all(isinstance(example(v), torch.Tensor) and example(v).dim() == 1 for v in (a, b))
        ):
            (high, i, _), (low, j, _) = boundary_vector(a), boundary_vector(b)
            if (
                high is low
                and unchanged(high, node)
                and i == 1
                and j == 0
                and _ends_at(b) == -1
                and _ends_at(a) is None
            ):
                return high
    return None


def summed(call: Callable[..., fx.Node], lengths: fx.Node) -> fx.Node:
    """``[N + 1]`` boundaries, from 0 on, of documents with these lengths; ``call`` makes nodes.

    Lengths that were made from boundaries are taken with the empty document in front, as N + 1 numbers: with dynamic
    shapes a tensor of N entries makes torch ask whether N is 1, and that is another graph.
    """
    steps: list[tuple[Any, int]] = []
    node: Any = lengths
    while isinstance(node.args[0] if node.args else None, fx.Node) and unchanged(node.args[0], node):
        if node.target in (operator.floordiv, operator.mul) and type(node.args[1]) is int:
            steps.append((node.target, node.args[1]))
        elif node.target != "clone" or len(node.args) > 1 or node.kwargs:
            break
        node = node.args[0]
    cu = lengths_of(node)
    if cu is None:
        sums = call(torch.cumsum, lengths, 0)
        return call(torch.cat, (call("new_zeros", sums, (1,), method=True), sums))
    first = call(operator.getitem, cu, slice(0, 1))
    if not steps:
        return call(torch.sub, cu, first)
    each = call(torch.diff, cu, 1, 0, first)
    for op, by in reversed(steps):
        each = call(op, each, by)
    return call(torch.cumsum, each, 0)


def taken_apart(machine: Machine, value: Affine, node: fx.Node) -> Affine:
    """The same number, with entries of sums and differences of vectors as those of the vectors."""
    total = Affine(const=value.const)
    for atom, count in value.atoms:
        parts = _summands(atom, node) if isinstance(atom, Bound) and not atom.of.lengths else ()
        if not parts:
            total = total.plus(Affine(frozenset({(atom, count)})))
        for part, sign in parts:
            number = Affine.of(part) if isinstance(part, int) else None
            if isinstance(part, fx.Node):
                number = element(machine, part, Affine.of(Index()).plus(Affine.of(atom.k)), node)  # type: ignore[union-attr]
            if number is None:
                return value
            total = total.plus(taken_apart(machine, number.times(sign * count), node))
    return total


def _summands(bound: Bound, node: fx.Node) -> tuple[tuple[Any, int], ...]:
    """``((vector or number, sign), ...)`` that a vector, unchanged up to ``node``, is the sum of; empty if it is no
    sum."""
    vector = bound.of.node
    fake = example(vector)
    if mutated_after(vector.graph, vector, vector.next, node):
        return ()
    filled = contents_of(vector)
    if isinstance(filled, Uniform) and type(filled.value) is int:
        return ((filled.value, 1),)
    name = name_of_target(vector.target)
    call = call_of(vector) if name in ("add", "sub") else None
    if call is None or call.arguments.get("alpha", 1) != 1:
        return ()
    sides = [call.arguments.get(name) for name in ("input", "other")]
    for side in sides:
        if isinstance(side, fx.Node):
            own = example(side)
            same = (
                isinstance(own, torch.Tensor)
                and own.dim() == 1
                and statically_known_true(own.shape[0] == fake.shape[0])
            )
            if not same or own.dtype != fake.dtype or mutated_after(vector.graph, side, vector, node):
                return ()
        elif type(side) is not int:
            return ()
    return ((sides[0], 1), (sides[1], 1 if name == "add" else -1))


def documents_of_lengths(machine: Machine, lengths: fx.Node, node: fx.Node) -> tuple[Boundaries, int]:
    """The boundaries that a vector of lengths, looked at by ``node``, was made from or summed up to; or itself."""
    root, _, _ = boundary_vector(lengths)
    cu = lengths_of(root) or summed_up(machine, root, node)
    return (Boundaries(cu), 0) if cu is not None else (Boundaries(root, lengths=True), 0)


def check_split(call: Callable[..., fx.Node], x: Any, lengths: fx.Node, dim: Any, total: fx.Node | None = None) -> None:
    """Torch splits a tensor only where the lengths add up to its size; ``call`` makes nodes. ``total``: what they add
    up to, if that is made already."""
    total = call(torch.sum, lengths) if total is None else total
    fits = call(operator.eq, total, call(torch.ops.aten.sym_size.int, x, dim))
    call(torch._assert_async, fits, "packpass: the lengths that a tensor is split by do not add up to its size")


def summed_up(machine: Machine, lengths: fx.Node, node: fx.Node) -> fx.Node | None:
    """``cu`` if a program has summed up lengths, from 0 on, to the boundaries of documents before the loop: padded in
    front, joined to a 0, or written behind the first entry of zeros."""
    for sums in lengths.users:
        if sums in machine.inside or not sums < node:
            continue
        kept = copied(sums) is lengths and example(sums).dtype in (torch.int64, example(lengths).dtype)
        if kept and unchanged(lengths, sums):
            of_copy = summed_up(machine, sums, node)
            if of_copy is not None:
                return of_copy
        if name_of_target(sums.target) != "cumsum":
            continue
        call = call_of(sums)
        if call is None or call.arguments.get("dim") not in (0, -1) or not _is_copy(lengths, sums):
            continue
        for user in sums.users:
            cu = _from_zero(user, sums)
            if cu is not None and cu not in machine.inside and user < node and _is_copy(lengths, sums):
                changed = [mutated_after(cu.graph, *of, node) for of in ((cu, user.next), (lengths, sums))]
                if not any(changed):
                    return cu
    return None


def running_sums(low: Bound, high: Bound, node: fx.Node) -> Boundaries | None:
    """The documents of a vector of lengths, where one number is an entry of what these sum up to (``ends``), and the
    other one the same entry of ``ends - lengths``, or of the sums of the lengths behind a 0."""
    if low.k or high.k or low.of.lengths or high.of.lengths:
        return None
    starts, ends = low.of.node, high.of.node
    lengths = _summed(ends)
    if lengths is None or any(mutated_after(v.graph, v, v.next, node) for v in (starts, ends, lengths)):
        return None
    if any(not statically_known_true(example(v).shape[0] == example(lengths).shape[0]) for v in (starts, ends)):
        return None
    before = _summed(starts)
    shifted = (
        before is not None
        and _is_behind_zero(before, lengths)
        and not mutated_after(before.graph, before, before.next, node)
    )
    call = call_of(starts) if name_of_target(starts.target) == "sub" else None
    if call is not None and call.arguments.get("alpha", 1) == 1:
        sides = [call.arguments.get(name) for name in ("input", "other")]
        roots = [boundary_vector(side)[:2] if isinstance(side, fx.Node) else None for side in sides]
        shifted = roots == [(ends, 0), (lengths, 0)]
    return Boundaries(lengths, lengths=True) if shifted else None


def _summed(sums: fx.Node) -> fx.Node | None:
    """The vector of integers that these are the running sums of."""
    call = call_of(sums) if name_of_target(sums.target) == "cumsum" else None
    given = None if call is None else call.arguments.get("input")
    whole = isinstance(given, fx.Node) and example(given).dim() == 1 and not example(given).is_floating_point()
    if call is None or not whole or call.arguments.get("dim") not in (0, -1) or example(sums).dtype is not torch.int64:
        return None
    root, offset, _ = boundary_vector(given)  # type: ignore[arg-type]
    return None if offset else root


def _behind_zero(vector: fx.Node) -> fx.Node | None:
    """What a vector is that begins with a 0 put in front of it; None for any other vector."""
    return next((given for given in vector.all_input_nodes if _from_zero(vector, given) is vector), None)


def _is_behind_zero(vector: fx.Node, lengths: fx.Node) -> bool:
    """Is it a 0, and behind it these lengths, up to where it ends?"""
    given = _behind_zero(vector)
    return given is not None and boundary_vector(given)[:2] == (lengths, 0)


def begins_of(vector: fx.Node, lengths: fx.Node) -> bool:
    """Is it a 0, and behind it the running sums of these lengths?"""
    (root, offset, _), sums = boundary_vector(lengths), _behind_zero(vector)
    if offset or sums is None or _summed(sums) is not root:
        return False
    return all(unchanged(made, made.next) for made in (vector, sums, root))


def _zero_in_front(machine: Machine, ends: fx.Node, node: fx.Node) -> tuple[fx.Node, int] | None:
    """``(cu, k)`` if a program has put a 0 in front of where documents end: in front of ``ends[k:]``."""
    for user in ends.users:
        if user in machine.inside or not user < node:
            continue
        cu = _from_zero(user, ends)
        if cu is not None and not mutated_after(cu.graph, cu, user.next, node):
            found: tuple[fx.Node, int] | None = cu, 0
        else:
            k = 0 if copied(user) is ends and example(user).dtype is torch.int64 else _begins_at(user, ends)
            behind = None if k is None else _zero_in_front(machine, user, node)
            found = None if behind is None or k is None else (behind[0], behind[1] + k)
        if found is not None and not mutated_after(ends.graph, ends, user, node):
            return found
    return None


def _begins_at(node: fx.Node, vector: fx.Node) -> int | None:
    """k if ``node`` is ``vector[k:]``."""
    if op_name(node) != "getitem" or node.args[0] is not vector or not isinstance(node.args[1], slice):
        return None
    cut = node.args[1]
    whole = cut.stop is None and cut.step in (None, 1) and (cut.start is None or type(cut.start) is int)
    return cut.start or 0 if whole and (cut.start or 0) >= 0 else None


def _is_copy(lengths: fx.Node, sums: fx.Node) -> bool:
    return example(sums).dtype in (torch.int32, torch.int64) and example(lengths).dim() == 1


def _from_zero(user: fx.Node, sums: fx.Node) -> fx.Node | None:
    """The vector in which a 0 stands in front of the sums."""
    name = name_of_target(user.target)
    if name == "setitem":
        parts: Any = user.args
        cu, at, value = parts
        whole = isinstance(at, slice) and (at.start, at.stop, at.step) in ((1, None, None), (1, None, 1))
        known = isinstance(cu, fx.Node) and value is sums and whole and contents_of(cu) == Uniform(0)
        return cu if known and example(cu).dim() == 1 and not mutated_after(cu.graph, cu, cu.next, user) else None
    call = call_of(user)
    if call is None:
        return None
    given = call.arguments
    if name == "pad":
        zero = given.get("value") in (None, 0) and given.get("mode", "constant") == "constant"
        return user if given.get("input") is sums and tuple(given.get("pad", ())) == (1, 0) and zero else None
    if name in ("cat", "concat", "concatenate"):
        tensors: Any = given.get("tensors")
        first: Any = tensors[0] if isinstance(tensors, (tuple, list)) and len(tensors) == 2 else None
        one = isinstance(first, fx.Node) and example(first).dim() == 1 and contents_of(first) == Uniform(0)
        one = one and statically_known_true(example(first).shape[0] == 1)
        one = one and tensors[1] is sums
        return user if one and unchanged(first, first.next) else None
    return None


def _ends_at(node: fx.Node) -> int | None:
    """The stop of the outermost slice of a boundary vector (None: to the end)."""
    while isinstance(node, fx.Node) and node.args and isinstance(node.args[0], fx.Node):
        if op_name(node) == "getitem" and isinstance(node.args[1], slice):
            return node.args[1].stop
        if node.op != "call_method":
            return None
        node = node.args[0]
    return None


def element(machine: Machine, vector: fx.Node, position: Affine, node: fx.Node) -> Any:
    """``vector[i + k]`` for the iteration's document ``i``."""
    at = position.single()
    if at is None or not isinstance(at[0], Index):
        return None
    behind = _zero_in_front(machine, vector, node)
    if behind is not None and at[1] >= behind[1]:
        machine.vectors.update((behind[0], vector))
        return Affine.of(Bound(Boundaries(behind[0]), at[1] - behind[1] + 1))
    root, offset, _ = boundary_vector(vector)
    machine.vectors.update((root, vector))
    made = _made_of_lengths(machine, vector, at[1], node)
    own = made is not None and made.bounds() and length_in(made) is not None
    return made if own else Affine.of(Bound(Boundaries(root), at[1] + offset))


def _made_of_lengths(machine: Machine, vector: fx.Node, k: int, node: fx.Node) -> Affine | None:
    """Entry ``i + k`` of a vector of lengths of documents, or of one that is worked out from them, each for itself:
    ``(lengths + 7) // 8 * 8 - lengths``."""
    root, offset, lengths = boundary_vector(vector)
    k += offset
    cu = lengths_of(root) if lengths else summed_up(machine, root, node)
    if cu is not None:
        whole = Boundaries(cu)
        return Affine.of(Bound(whole, k + 1)).plus(Affine.of(Bound(whole, k)), -1)
    if mutated_after(root.graph, root, root.next, node) or root.op not in ("call_function", "call_method"):
        return None

    def number(side: Any) -> Affine | None:
        if not isinstance(side, fx.Node):
            return Affine.of(side) if type(side) is int else None
        fakes = [example(n) for n in (side, root)]
        fits = all(isinstance(fake, torch.Tensor) and fake.dim() == 1 for fake in fakes)
        fits = fits and fakes[0].dtype == fakes[1].dtype and not mutated_after(root.graph, side, root, node)
        return _made_of_lengths(machine, side, k, node) if fits else None

    made = computed(root, number, divided)
    return made if isinstance(made, Affine) else None


def divided(name: str, value: Affine, by: int) -> Affine | None:
    """What division by a positive number leaves, for `computed`."""
    return None if value.is_shared else Affine.of(Derived(OF_INTEGERS[name], (value, Affine.of(by))))
