"""Products of matrices of the document's own sizes: ``q[s:e] @ k[s:e].T`` has a number for every two of its slots, and
so has ``torch.cdist(x[s:e], y[s:e])``.

Both operands are brought into memory, the matrices of all documents one behind the other, and `segment_matmul` does
what eager does, document by document, in one operation. Sizes that all documents share stay dimensions of the rows, so
that slots are gathered whole.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import sympy
import torch
from torch import fx

from packpass.semantics import Call, example
from packpass.semantics.effects import open_autocasts
from packpass.semantics.products import product_of
from passes.ragged_grids.machine import Machine
from passes.ragged_grids.sizes import coordinates, flat, product, unflat
from passes.ragged_grids.terms import Applied, Product, Read, Term, frozen

_ZERO = sympy.Integer(0)


@dataclasses.dataclass(frozen=True)
class _Letters:
    """Letters of the dimensions of a product by their part in it, and the size of each."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    inner: tuple[str, ...]
    columns: tuple[str, ...]
    sizes: dict[str, Any]

    def size(self, *letters: str) -> Any:
        return product(self.sizes[letter] for letter in letters)

    def shared(self, letters: tuple[str, ...], own: Any) -> bool:
        """Do all documents have the same of these sizes?"""
        return not any(self.sizes[letter].free_symbols & own for letter in letters)


def matrix_product(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """The term of a product of two tensors, at least one of which is summed over slots or paired with slots of the
    document; None for others."""
    fake, p = example(node), _norm(call)
    words = (product_of(call) or _of_layer(call)) if p is None else _pairs_of_rows(call)
    if words is None or not isinstance(fake, torch.Tensor) or not fake.dtype.is_floating_point:
        return None
    if open_autocasts(node.graph, node):
        return None
    (left, right), out = words
    operands = [machine.term(operand.node, node) for operand in call.operands[:2]]
    if any(operand.dtype != fake.dtype for operand in operands):
        return None
    letters = _letters(machine, [left, right], out, operands)
    if letters is None or (p is not None and not letters.shared(letters.inner, machine.names.own)):
        return None
    own = machine.names.own
    inner_shared, columns_shared = (letters.shared(part, own) for part in (letters.inner, letters.columns))
    a = _laid_out(machine, operands[0], left, letters, (*letters.batch, *letters.rows), letters.inner, inner_shared)
    turned = inner_shared
    if turned:
        b = _laid_out(machine, operands[1], right, letters, (*letters.batch, *letters.columns), letters.inner, True)
    else:
        ahead = (*letters.batch, *letters.inner)
        b = _laid_out(machine, operands[1], right, letters, ahead, letters.columns, columns_shared)
    count, width = letters.size(*letters.batch, *letters.rows), letters.size(*letters.columns)
    dims = (count, width) if columns_shared else (product((count, width)),)
    sizes = tuple(letters.size(*part) for part in (letters.batch, letters.rows, letters.inner, letters.columns))
    form = (fake.dtype, fake.device, fake.requires_grad)
    made = machine.intern(Product(dims, *form, a, b, sizes, turned, p))
    whole = _as_tensor(machine, made, out, letters, (machine.dims(fake, node), *form))
    return whole if len(call.operands) == 2 else _with_bias(machine, whole, machine.term(call.operands[2].node, node))


def _of_layer(call: Call) -> tuple[list[list[str]], list[str]] | None:
    """The same letters of ``linear``, whose weight is the document's own, as of ``x @ weight.T``."""
    ranks = [operand.rank for operand in call.operands]
    if call.op != "linear" or len(ranks) not in (2, 3) or ranks[1] != 2 or (len(ranks) == 3 and ranks[2] != 1):
        return None
    ahead = [f".{d}" for d in range(ranks[0] - 1)]
    return [[*ahead, "i"], ["o", "i"]], [*ahead, "o"]


def _with_bias(machine: Machine, whole: Term, bias: Term) -> Term | None:
    if bias.dtype != whole.dtype:
        return None
    at, form = coordinates(whole.dims), (whole.dims, whole.dtype, whole.device, whole.grad)
    parts = (machine.read(whole, at), machine.read(bias, at[-1:]))
    return machine.intern(Applied(*form, torch.add, False, frozen(parts), (), False, False))


def _norm(call: Call) -> float | None:
    """Of the distances that a call returns, if these are torch's own of any two rows."""
    p, mode = call.get("p", default=2.0), call.get("compute_mode", default=None)
    known = call.op == "cdist" and isinstance(p, (int, float)) and mode in (None, _OF_MANY)
    return float(p) if known else None


_OF_MANY = "use_mm_for_euclid_dist_if_necessary"


def _pairs_of_rows(call: Call) -> tuple[list[list[str]], list[str]] | None:
    """The same letters as of ``a @ b.mT``."""
    ranks = [operand.rank for operand in call.operands]
    if len(ranks) != 2 or ranks[0] != ranks[1]:
        return None
    batch = [f".{d}" for d in range(ranks[0] - 2)]
    return [[*batch, "i", "k"], [*batch, "j", "k"]], [*batch, "i", "j"]


def _letters(machine: Machine, words: list[list[str]], out: list[str], operands: list[Term]) -> _Letters | None:
    """What each letter is for; None where one is summed over in one operand alone, or two sizes may differ."""
    used = [
        {letter: size for letter, size in zip(word, term.dims, strict=True) if size != 1}
        for word, term in zip(words, operands, strict=True)
    ]
    sizes = {letter: sympy.Integer(1) for letter in out} | used[1] | used[0]
    left, right = used
    both = [letter for letter in left if letter in right]
    if any(not machine.same(left[letter], right[letter]) for letter in both):
        return None
    if (left.keys() ^ right.keys()) - set(out):
        return None
    return _Letters(
        tuple(letter for letter in out if letter in both),
        tuple(letter for letter in out if letter in left and letter not in right),
        tuple(letter for letter in both if letter not in out),
        tuple(letter for letter in out if letter in right and letter not in left),
        sizes,
    )


def _laid_out(
    machine: Machine,
    term: Term,
    word: list[str],
    letters: _Letters,
    ahead: tuple[str, ...],
    behind: tuple[str, ...],
    apart: bool,
) -> Read:
    """An operand with these letters in this order: as [ahead, behind] if ``apart``, else as one row."""
    sizes = [[letters.sizes[letter] for letter in part] for part in (ahead, behind)]
    dims = (product(sizes[0]), product(sizes[1])) if apart else (product((*sizes[0], *sizes[1])),)
    where: dict[str, Any] = {}
    if apart:
        for at, part, known in zip(coordinates(dims), (ahead, behind), sizes, strict=True):
            where |= dict(zip(part, unflat(at, known), strict=True))
    else:
        where = dict(zip((*ahead, *behind), unflat(coordinates(dims)[0], [*sizes[0], *sizes[1]]), strict=True))
    here = [letter if size != 1 else "" for letter, size in zip(word, term.dims, strict=True)]
    at = [where.get(letter, _ZERO) for letter in here]
    row = machine.moved((dims, term.dtype, term.device, term.grad), machine.read(term, at))
    return machine.read(row, coordinates(dims))


def _as_tensor(machine: Machine, made: Product, out: list[str], letters: _Letters, form: Any) -> Term:
    """The numbers in the dimensions that the program gives them."""
    where = dict(zip(out, coordinates(form[0]), strict=True))
    parts = [
        ([where[letter] for letter in part], [letters.sizes[letter] for letter in part])
        for part in ((*letters.batch, *letters.rows), letters.columns)
    ]
    if len(made.dims) == 2:
        at = [flat(*part) for part in parts]
    else:
        at = [flat([*parts[0][0], *parts[1][0]], [*parts[0][1], *parts[1][1]])]
    return machine.moved(form, machine.read(made, at))
