"""One value of the graph made of the entries of a list that a loop over documents has filled.

Where a branch leaves documents out (``if n == 0: continue`` in front of ``parts.append(...)``), the list has fewer
entries than there are documents. The passes make an entry for every document, and what the program sees are those that
were appended: how many these are, is a number that the host reads.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch

from packpass import markers
from packpass._compat import statically_known_true
from packpass.capture import as_wide, nothing, one_size
from packpass.capture.dynamo import call, constant, emit, example, size_of
from packpass.capture.fills import Filled, entries_of
from packpass.capture.lists import CollectedItems
from packpass.capture.size_words import size_in_words
from packpass.capture.state import current_frame, location_of, refuse, restart
from packpass.capture.watch import is_unknown


def among(tx: Any, items: CollectedItems, made: Any, at: int, stacked: bool = False) -> Any:
    """What was made of the documents' entries, between what is made of the others in the list."""
    if items.before or items.after:
        sides = [_parts(tx, side, at, stacked) for side in (items.before, items.after)]
        return emit(tx, torch.cat, [*sides[0], made.as_proxy(), *sides[1]], at)
    return made


def _parts(tx: Any, values: list[Any], at: int, stacked: bool) -> list[Any]:
    """What stands among the entries of a list at one end, to be joined: the proxies."""
    parts = list[Any]()
    for filled, side in itertools.groupby(values, lambda value: isinstance(value, Filled)):
        if filled:
            join = stack_of_all if stacked else cat_of
            parts += [join(tx, value.items, at, others=True).as_proxy() for value in side]
        else:
            proxies = [value.as_proxy() for value in side]
            parts += [emit(tx, torch.stack, proxies, at).as_proxy()] if stacked else proxies
    return parts


def cat_of(tx: Any, items: CollectedItems, at: int, others: bool = False) -> Any:
    """``torch.cat`` of the entries; ``others``: they are some of a list that has more."""
    _ensure_entries(tx, items, others)
    return among(tx, items, _documents_cat(tx, items.alone(), at, others or _has_others(items)), at)


def _ensure_entries(tx: Any, items: CollectedItems, others: bool) -> None:
    """Torch makes nothing of a list without entries. How many a loop has left is data where the number of documents is,
    and where several loops fill a list, one must have left something."""
    values = [*items.before, *items.after]
    filled = entries_of(values)
    if others or len(filled) < len(values) or (items.lacking and not filled):
        return
    number = items.alone().entries()
    for value in filled:
        number = call(tx, operator.add, number, value.items.alone().entries())
    count = size_of(number)
    if is_unknown(count) and not statically_known_true(count > 0):
        some = call(tx, torch.scalar_tensor, call(tx, operator.gt, number, constant(0)))
        nothing.ensure(tx, some, "expected a non-empty list of tensors")


def _has_others(items: CollectedItems) -> bool:
    """Has the list entries of the program's own, so that it is not empty where no document appends?"""
    return bool(items.before or items.after)


def _documents_cat(tx: Any, items: CollectedItems, at: int, others: bool) -> Any:
    wide = as_wide.all_as_wide(items, joined_at=at)
    collected = items.joined(torch.cat, at) if wide is None else wide
    fake = example(collected)
    if fake.dim() and not is_unknown(fake.shape[at]):
        every_document(items)
        if items.lacking:
            at = at % fake.dim()
            entries = stack_of(tx, items, 0, some=not others)
            return entries.call_method(tx, "movedim", [constant(0), constant(at)], {}).call_method(
                tx, "flatten", [constant(at), constant(at + 1)], {}
            )
        return emit(tx, markers.LIST_JOIN, collected.as_proxy(), at, items.region.length.as_proxy())
    if not others:
        _note_total(items, collected, at % fake.dim())
    return emit(tx, markers.RAGGED_CAT, collected.as_proxy(), at, *((False,) if others else ()))


def _note_total(items: CollectedItems, collected: Any, at: int) -> None:
    """Lists to which every document of a loop appends as much are as long as each other, which the program may ask."""
    parts = collected.as_proxy().node.all_input_nodes
    if items.lacking:
        return
    sizes = tuple(size_in_words(part, at) for part in parts)
    totals = current_frame().totals.setdefault((items.region.id, sizes), [])
    markers.note_total(example(collected), totals)


def stack_of(tx: Any, items: CollectedItems, at: int, present: bool = True, some: bool = True) -> Any:
    every_document(items)
    collected = as_wide.all_as_wide(items)
    if collected is None:
        collected = one_size.of_rows(items) if items.each == 1 else items.joined(torch.stack, at)
    first = collected.as_proxy().node.args[0].meta["example_value"]
    sizes = zip(example(collected).shape, first.shape, strict=True)
    if any(is_unknown(size) and not statically_known_true(size == own) for size, own in sizes):
        reason = "documents of different lengths cannot be stacked"
        raise refuse("list-use", reason, location_of(tx), items.region.key)
    op = markers.LIST_STACK if items.each == 1 else markers.LIST_JOIN
    made = emit(tx, op, collected.as_proxy(), at, items.region.length.as_proxy(), bool(items.lacking) and some)
    return present_of(tx, items, made, at, some) if present else made


def stack_of_all(tx: Any, items: CollectedItems, at: int, others: bool = False) -> Any:
    """``torch.stack`` of the entries; ``others``: they are some of a list that has more."""
    _ensure_entries(tx, items, others)
    some = not (others or _has_others(items))
    return among(tx, items, stack_of(tx, items.alone(), at, some=some), at, stacked=True)


def every_document(items: CollectedItems) -> None:
    """The result has one entry per document by its shape. If some are skipped, the frame is traced again with the skip
    followed both ways, so that it is known which."""
    region, frame = items.region, current_frame()
    if region.skips and region.may_follow_skips(frame):
        frame.both_ways.add(region.key)
        raise restart("which documents are skipped is asked for")
    if region.skips:
        frame.not_replayable = "a list that lacks the skipped documents is stacked, padded or joined"


def present_of(tx: Any, items: CollectedItems, made: Any, dim: int, some: bool = True) -> Any:
    """What was made of the entries of all documents, without those that the list lacks. Torch makes nothing of a list
    without entries: there are ``some``."""
    if not items.lacking:
        return made
    number = items.entries()
    if some:
        holds = call(tx, operator.gt, items.present().call_method(tx, "sum", [constant(0)], {}), constant(0))
        call(tx, torch._assert_async, holds, constant("expected a non-empty list of tensors"))
    known = {"dim": constant(dim), "output_size": number}
    return made.call_method(tx, "repeat_interleave", [items.present()], known)
