"""Sums of products of a document's slots, and attention that is written out of them.

::

    scores = einsum("qhd,khd->hqk", q, k)          # every two slots of a document: followed (`pairs`)
    y[s:e] = einsum("hqk,khd->qhd", weights, v)    # weights are a softmax of scores: one call of `varlen_attention`
    score = einsum("hd,khd->hk", query_of_document, k[s:e])      # one query per document: a row as any other
    summary = einsum("hk,khd->hd", score.softmax(-1), v[s:e])    # a sum over the slots: one value per document

Every product is read as letters, one for each dimension, whether it is written as ``einsum`` or as ``matmul``.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import fx

from packpass._compat import hint_of
from packpass.ops._varlen_attention_gpu import takes
from packpass.semantics import call_of, example
from packpass.semantics.bound_mixers import attention_of
from packpass.semantics.products import equation_of, product_of
from passes.document_loops.documents import as_term, cast, document, spread
from passes.document_loops.integers import FULL
from passes.document_loops.machine import Document, Machine, Segment
from passes.document_loops.op_names import label, unshadowed
from passes.document_loops.own_weights import own_product
from passes.document_loops.pairs import Band, Pairs, Scores, Side, visible
from passes.document_loops.rules_reductions import exact_type
from passes.document_loops.terms import LENGTH, Apply, Attention, Reduce, Term
from passes.refused import Refused

_MOST = 16
"""How many times larger than its operands, per slot, a product may be that is summed over the slots."""


def _refused(node: fx.Node, why: str) -> Refused:
    return Refused("no-rule", f"{label(node)}: {why}", node)


@dataclasses.dataclass(frozen=True)
class Product:
    """A product of two operands in letters; ``sizes`` of letters, as far as they are constant."""

    nodes: tuple[fx.Node, fx.Node]
    letters: tuple[tuple[str, ...], tuple[str, ...]]
    out: tuple[str, ...]
    sizes: dict[str, Any]

    def size(self, word: tuple[str, ...], letter: str) -> Any:
        """Numbers of an operand, or of the result, for each slot of ``letter``; of a dynamic size as it is now."""
        return math.prod(hint_of(self.sizes[a]) or 0 for a in word if a != letter)


def _product(node: fx.Node) -> Product | None:
    call = call_of(node)
    found = None if call is None else product_of(call)
    if call is None or found is None or not example(node).is_floating_point():
        return None
    sides, out = found
    sizes: dict[str, Any] = {}
    for word, value in zip((*sides, out), (*(o.value for o in call.operands), call.results[0]), strict=True):
        for letter, size in zip(word, value.shape, strict=True):
            if type(sizes.get(letter, 1)) is int and sizes.get(letter, 1) == 1:
                sizes[letter] = size
    a, b = call.operands
    return Product((a.node, b.node), (tuple(sides[0]), tuple(sides[1])), tuple(out), sizes)


def product(machine: Machine, node: fx.Node) -> Any:
    """A product of two rows, or of a row and a value of the document; NotImplemented for what others know."""
    found = _product(node)
    if found is None:
        return NotImplemented
    values = [machine.value(n) for n in found.nodes]
    rows = [v for v in values if isinstance(v, Segment)]
    if not rows or not all(isinstance(v, (Segment, Document)) for v in values):
        return NotImplemented
    if any(r.window != FULL or not r.store.exact for r in rows):
        return NotImplemented
    slots = {k: word[v.rank + v.dim] for k, (word, v) in enumerate(zip(found.letters, values, strict=True))
             if isinstance(v, Segment)}  # fmt: skip
    if len(slots) == 2 and slots[0] != slots[1]:
        if any(slots[1 - k] in found.letters[k] for k in (0, 1)) or not set(slots.values()) <= set(found.out):
            return NotImplemented
        return _scores(machine, node, found, slots)
    (letter,) = set(slots.values())
    if any(letter in word and k not in slots for k, word in enumerate(found.letters)):
        return NotImplemented
    if len(slots) == 2 and letter in found.out:
        return NotImplemented  # the same for every slot
    return _of_slots(machine, node, found, slots, letter)


# === Scores ==================================================================================================


def _scores(machine: Machine, node: fx.Node, found: Product, slots: dict[int, str]) -> Any:
    """A number for every two slots of the document."""
    sides = []
    for k, (arg, word) in enumerate(zip(found.nodes, found.letters, strict=True)):
        value = machine.value(arg)
        alone = set(word) - set(found.out) - set(found.letters[1 - k])
        if alone:
            raise _refused(node, "one side of the scores is summed over a dimension that the other lacks")
        sides.append(Side(machine.read(value, node), word, slots[k]))
    places = sorted(found.out.index(slot) - len(found.out) for slot in slots.values())
    if found.out.index(slots[0]) > found.out.index(slots[1]):
        sides.reverse()
    fakes = [example(n) for n in found.nodes]
    dtype = torch.promote_types(fakes[0].dtype, fakes[1].dtype)
    shared = [letter for letter in found.letters[0] if letter not in found.out]
    fixed = {letter for word in found.letters for letter in word} - set(slots.values())
    if not shared or any(type(found.sizes[letter]) is not int for letter in fixed):
        return NotImplemented
    for fake, word in zip(fakes, found.letters, strict=True):
        if any(fake.shape[word.index(letter)] != found.sizes[letter] for letter in shared):
            return NotImplemented
    scores = Scores(sides[0], sides[1], found.out, found.sizes, dtype)
    return Pairs(scores, len(found.out), (places[0], places[1]))


# === Attention ===============================================================================================


def attended(machine: Machine, node: fx.Node) -> Any:
    """Weights times values, or a fused attention with a mask of pairs."""
    with unshadowed(node) as plain:
        fused = attention_of(plain)
    if fused is not None:
        return _fused(machine, node, fused)
    found = _product(node)
    if found is None:
        return NotImplemented
    values = [machine.value(n) for n in found.nodes]
    at = next((k for k, v in enumerate(values) if isinstance(v, Pairs)), None)
    if at is None or not isinstance(values[1 - at], Segment):
        return NotImplemented
    weights = values[at].read(node)
    if not isinstance(weights, Scores) or not weights.weights:
        raise _refused(node, "a value of every two slots of a document is multiplied that is no attention weight")
    word, value = found.letters[1 - at], values[1 - at]
    weights = _renamed(weights, dict(zip(weights.letters, found.letters[at], strict=True)), found)
    key = weights.weights
    query = next(s.slots for s in (weights.first, weights.second) if s.slots != key)
    if word[value.rank + value.dim] != key or key in found.out or query not in found.out or query in word:
        raise _refused(node, "attention weights are not summed up over the keys")
    single = {letter for letter, size in found.sizes.items() if type(size) is int and size == 1} - set(found.out)
    heads = tuple(a for a in found.letters[at] if a not in (key, query) and a not in single)
    features = tuple(a for a in word if a != key and a not in heads and a not in single)
    if not set(heads) | set(features) <= set(found.out):
        raise _refused(node, "attention weights and values are summed up over something else than the keys")
    dtype = torch.promote_types(weights.dtype, torch.promote_types(*(example(n).dtype for n in found.nodes)))
    weights = dataclasses.replace(weights, dtype=dtype)
    return _attention(machine, node, weights, Side(machine.read(value, node), word, key), heads, features, found.out)


def _renamed(scores: Scores, to: dict[str, str], found: Product) -> Scores:
    """Scores in the letters of another product; those that it does not know are kept apart from its own."""

    def word(letters: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(to.get(letter, f"_{letter}") for letter in letters)

    first, second = (Side(s.term, word(s.letters), to[s.slots]) for s in (scores.first, scores.second))
    sizes = {**dict(zip(word(tuple(scores.sizes)), scores.sizes.values(), strict=True)), **found.sizes}
    return dataclasses.replace(
        scores, first=first, second=second, letters=word(scores.letters), sizes=sizes, weights=to[scores.weights]
    )


def _fused(machine: Machine, node: fx.Node, parts: Any) -> Any:
    """``scaled_dot_product_attention`` of a document with a mask of its slots."""
    values = [machine.value(n) for n in (parts.query, parts.key, parts.value)]
    mask = None if parts.mask is None else machine.value(parts.mask)
    if not isinstance(mask, Pairs) or not all(isinstance(v, Segment) for v in values):
        return NotImplemented
    band, fakes = mask.read(node), [example(n) for n in (parts.query, parts.key, parts.value)]
    rank = fakes[0].dim()
    plain = isinstance(parts.scale, (int, float, type(None))) and not parts.dropout
    if not isinstance(band, Band) or mask.dims != (-2, -1) or parts.causal or not plain:
        raise _refused(node, "this mask, scale or dropout of a document's attention has no rule")
    if any(v.rank != rank or v.dim != -2 or v.window != FULL or not v.store.exact for v in values):
        raise _refused(node, "attention between a document and something else has no rule")
    heads = tuple(f"h{d}" for d in range(rank - 2))
    words = ((*heads, "q", "d"), (*heads, "k", "d"), (*heads, "k", "e"))
    sizes: dict[str, Any] = {}
    groups = [_group(fakes[0], fake) if parts.grouped else 1 for fake in fakes]
    for word, fake, group in zip(words, fakes, groups, strict=True):
        for letter, size in zip(word, fake.shape, strict=True):
            if group > 1 and letter == heads[-1]:
                size *= group
            if letter not in "qk" and (type(size) is not int or size != sizes.setdefault(letter, size)):
                raise _refused(node, "attention with other heads for keys than for queries has no rule")
    added = torch.where(band.values, 0.0, -math.inf) if band.values.dtype is torch.bool else band.values
    terms = [machine.read(v, node) for v in values]
    terms = [
        _call(machine, torch.repeat_interleave, term, group, -3, dim=-2) if group > 1 else term
        for term, group in zip(terms, groups, strict=True)
    ]
    sides = [Side(term, word, word[-2]) for term, word in zip(terms, words, strict=True)]
    scale = 1 / math.sqrt(sizes["d"]) if parts.scale is None else float(parts.scale)
    letters = (*heads, "q", "k")
    scores = Scores(sides[0], sides[1], letters, sizes, fakes[0].dtype, scale, Band(added.double()), None, "k")
    return _attention(machine, node, scores, sides[2], heads, ("e",), (*heads, "q", "e"))


def _group(query: torch.Tensor, other: torch.Tensor) -> int:
    """How many heads of queries share one of the keys (or values), where they are grouped."""
    heads, own = (x.shape[-3] if x.dim() > 2 else 1 for x in (query, other))
    known = type(heads) is int and type(own) is int and own > 0 and heads % own == 0
    return heads // own if known else 1


def _attention(
    machine: Machine, node: fx.Node, scores: Scores, value: Side, heads: tuple[str, ...], features: tuple[str, ...],
    out: tuple[str, ...],
) -> Any:  # fmt: skip
    """One call of `varlen_attention` for all documents."""
    query, key, turned = scores.first, scores.second, scores.second.slots != scores.weights
    if turned:
        query, key = key, query
    seen = visible(scores.band, not turned, node)
    sizes, dtype = scores.sizes, scores.dtype
    summed = tuple(a for a in query.letters if a in key.letters and a not in (*heads, *out) and sizes[a] != 1)
    summed = summed or tuple(a for a in query.letters if a in key.letters and a not in (*heads, *out))
    if any(type(sizes[a]) is not int for a in (*heads, *features, *summed)):
        raise _refused(node, "heads or features of a dynamic number have no packed attention")
    rows = [
        _rows(machine, side, heads, own, scores, node)
        for side, own in ((query, summed), (key, summed), (value, features))
    ]
    width, columns = (math.prod(sizes[a] for a in word) for word in (summed, features))
    if scores.rows is not None:
        rows[:2] = _with_rows(machine, rows, scores, (query.slots, key.slots), heads, node)
        width += 2
    if not takes(example(node).device.type, dtype, max(width, columns), seen.window):
        raise _refused(node, "there is no packed attention for this dtype on this device")
    short = range(2) if width < columns else range(2, 3)
    if width != columns:
        for k in short:  # zeros change no score, and no sum of values
            fill = (0, abs(columns - width))
            rows[k] = _call(machine, torch.nn.functional.pad, rows[k], fill, dim=-2)
    term: Term = machine.intern(
        Attention(rows[0], rows[1], rows[2], seen.causal, float(scores.scale), 3, -2, seen.window)
    )
    if columns < width:
        term = _call(machine, torch.narrow, term, -1, 0, columns, dim=-2)
    after = -1 - len(features)
    shape = (*(sizes[h] for h in heads), LENGTH, *(sizes[f] for f in features))
    return _ordered(machine, node, _call(machine, "reshape", term, *shape, dim=after), (*heads, query.slots, *features),
                    query.slots, out, dtype)  # fmt: skip


def _ordered(
    machine: Machine, node: fx.Node, term: Term, have: tuple[str, ...], slots: str, out: tuple[str, ...],
    dtype: torch.dtype,
) -> Segment:  # fmt: skip
    """A row whose dimensions are ``have``, as ``out`` has them."""
    for letter in out:
        if letter not in have:  # a dimension of one slot
            term, have = _call(machine, "unsqueeze", term, 0, dim=term.dim), (letter, *have)
    order, dim = [have.index(letter) for letter in out], out.index(slots) - len(out)
    if order != list(range(len(order))):
        term = _call(machine, "permute", term, *order, dim=dim)
    return machine.fresh(cast(machine, term, dtype, example(node).dtype), len(out))


def _call(machine: Machine, target: Any, *args: Any, dim: int) -> Term:
    term: Term = machine.intern(Apply(target, isinstance(target, str), args, (), dim))
    return term


def _rows(
    machine: Machine, side: Side, heads: tuple[str, ...], features: tuple[str, ...], scores: Scores, node: fx.Node
) -> Term:
    """A side as [H, T, D]: dimensions in order, and those written out that it shares among heads."""
    sizes, after = scores.sizes, -1 - len(features)
    kept = (*heads, side.slots, *features)
    gone = [letter for letter in side.letters if letter not in kept]
    if any(sizes[letter] != 1 for letter in gone) or not set(features) <= set(side.letters):
        raise _refused(node, "a dimension of queries, keys or values has no place in the result")
    order = [side.letters.index(a) for a in (*gone, *(a for a in kept if a in side.letters))]
    term = machine.intern(Apply("to", True, (side.term, scores.dtype), (), side.term.dim))
    if order != list(range(len(order))):
        term = _call(machine, "permute", term, *order, dim=after)
    for _ in gone:
        term = _call(machine, "squeeze", term, 0, dim=after)
    for place, head in enumerate(heads):
        if head not in side.letters:
            term = _call(machine, "unsqueeze", term, place, dim=after)
    sized = tuple(sizes[h] for h in heads)
    if heads:
        term = _call(machine, "expand", term, *sized, *([-1] * (1 + len(features))), dim=after)
    return _call(machine, "reshape", term, math.prod(sized), LENGTH, math.prod(sizes[f] for f in features), dim=-2)


def _with_rows(
    machine: Machine, rows: list[Term], scores: Scores, slots: tuple[str, str], heads: tuple[str, ...], node: fx.Node
) -> list[Term]:
    """A number of the query and one of the key, added to every score, as two more features of both."""
    assert scores.rows is not None
    columns, letters = [], scores.letters
    own = (scores.first.slots, scores.second.slots)
    for (term, rank), slot, other in zip((scores.rows.first, scores.rows.second), own, own[::-1], strict=True):
        for _ in range(len(letters) - rank):
            term = _call(machine, "unsqueeze", term, 0, dim=term.dim)
        at = letters.index(other)
        dim = term.dim + (1 if at > letters.index(slot) else 0)
        term = _call(machine, "squeeze", term, at, dim=dim)
        side = Side(term, tuple(a for a in letters if a != other), slot)
        columns.append(_rows(machine, side, heads, (), scores, node))
    if slots != own:
        columns.reverse()
    ones = [machine.intern(Apply(torch.ones_like, False, (c,), (), -2)) for c in columns]
    scaled = [_call(machine, torch.mul, c, 1.0 / scores.scale, dim=-2) for c in columns]
    query = _call(machine, torch.cat, (rows[0], scaled[0], ones[0]), -1, dim=-2)
    key = _call(machine, torch.cat, (rows[1], ones[1], scaled[1]), -1, dim=-2)
    return [query, key]


# === One query per document, and sums over the slots =========================================================


def _of_slots(machine: Machine, node: fx.Node, found: Product, slots: dict[int, str], letter: str) -> Any:
    """The slots are one dimension of the product, or are summed up: computed slot by slot."""
    kept = (letter, *(a for a in found.out if a != letter))
    if any(hint_of(found.sizes[a]) is None for word in (kept, *found.letters) for a in word if a != letter):
        return NotImplemented
    summed = letter not in found.out
    want = example(node).dtype
    exact = exact_type(want) if summed else want
    if summed and found.size(kept, letter) > _MOST * max(found.size(word, letter) for word in found.letters):
        raise _refused(node, "it is summed up over the slots of a document, and too large for each of them")
    if not summed and _is_too_large(found, slots, letter):
        return _of_own_matrix(machine, node, found, slots)
    terms: list[Term] = []
    words: list[tuple[str, ...]] = []
    for k, (arg, word) in enumerate(zip(found.nodes, found.letters, strict=True)):
        have = example(arg).dtype
        if k in slots:
            value = machine.value(arg)
            term = machine.read(value, node)
        else:
            term = _call(machine, torch.unsqueeze, as_term(machine, arg, node), -1, dim=0)
            term = spread(machine, term, (*example(arg).shape, 1), -1, node)
            word = (*word, letter)
        term = cast(machine, term, have, exact)
        if example(node).requires_grad:  # a gradient of 0 times the NaN of a slot that nobody asked for
            term = machine.guard(term, FULL, term.dim)
        terms.append(term)
        words.append(word)
    target = kept if summed else found.out
    dim = target.index(letter) - len(target)
    term = machine.intern(Apply(torch.einsum, False, (equation_of(words, target), *terms), (), dim))
    if not summed:
        return machine.fresh(term, len(target))
    return document(machine, cast(machine, machine.intern(Reduce(term, "sum", dim)), exact, want))


def _is_too_large(found: Product, slots: dict[int, str], letter: str) -> bool:
    """Is a document's own operand, the weights of an expert, say, much larger than all that its slots have?"""
    largest = max(found.size(word, letter) for word in (found.out, *(found.letters[k] for k in slots)))
    others = [word for k, word in enumerate(found.letters) if k not in slots]
    return any(found.size(word, letter) > _MOST * largest for word in others)


def _of_own_matrix(machine: Machine, node: fx.Node, found: Product, slots: dict[int, str]) -> Any:
    """The slots of a document times its own matrix, from the right."""
    (k,) = slots
    row, word, other = machine.value(found.nodes[k]), found.letters[k], found.letters[1 - k]
    fits = len(word) == len(other) == len(found.out) == 2 and word[0] == found.out[0] == slots[k]
    if fits and {word[1], found.out[1]} == set(other) and example(found.nodes[k]).dtype == example(node).dtype:
        made = own_product(machine, node, row, found.nodes[1 - k], turned=other[0] == found.out[1])
        if made is not None:
            return machine.fresh(made, 2)
    raise _refused(node, "what the document has one of is too large for each of its slots")
