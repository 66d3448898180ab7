"""Exchanges per document as they stand in larger programs, and programs that only look like such an exchange.

Each is ``f(x, cu, group)``, with a zigzag shard ``[T / cp, WIDTH * cp]`` or, where `Hard.sharded` is off, all tokens of
some heads ``[T, WIDTH]``. Boundaries are a tensor, which some programs write to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor
from torch.nn import functional as F

from tests.dist import a2a_computed_programs as computed
from tests.dist import a2a_filled_programs as filled
from tests.dist import a2a_gather_programs as gather
from tests.dist import a2a_joined_programs as joined
from tests.dist import a2a_kept_programs as kept
from tests.dist import a2a_library_programs as library
from tests.dist import a2a_pieces_programs as pieces
from tests.dist import a2a_placed_programs as placed
from tests.dist import a2a_spelled_programs as spelled
from tests.dist import a2a_twice_programs as twice
from tests.dist import a2a_waited_programs as waited
from tests.dist.a2a_moves import WIDTH, gathered, scatter_sequence, size_of, unzigzag, zigzag
from tests.dist.naive import AllToAll

# === Rewritten ==================================================================================================


def numbers(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    return torch.cat([gathered(x[s // cp : e // cp], group) for s, e in pairwise(cu.tolist())])


def numbers_back(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    return torch.cat([scatter_sequence(zigzag(x[s:e], cp), group) for s, e in pairwise(cu.tolist())])


def split_by_lengths(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    lengths = (cu[1:] - cu[:-1]) // size_of(group)
    return torch.cat([gathered(document, group) for document in x.split(lengths.tolist())])


def split_by_lengths_back(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    for document in torch.split(x, torch.diff(cu).tolist(), dim=0):
        out.append(scatter_sequence(zigzag(document, cp), group))
    return torch.cat(out)


SECTIONS = {"query": 2, "key": 2, "value": 4, "gate": 2, "beta": 1, "alpha": 1}


def named_sections(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A list per section, and what a layer does with them."""
    cp = size_of(group)
    lists: dict[str, list[Tensor]] = {name: [] for name in SECTIONS}
    for start, stop in pairwise(cu.tolist()):
        parts = torch.split(x[start // cp : stop // cp], [cp * w for w in SECTIONS.values()], dim=-1)
        for name, part in zip(lists, parts, strict=True):
            lists[name].append(gathered(part, group))
    y = {name: torch.cat(documents) for name, documents in lists.items()}
    value = y["value"] * torch.sigmoid(y["gate"]).repeat(1, 2)
    return torch.cat([y["query"] * y["beta"], y["key"], value, -F.softplus(y["alpha"])], -1)


def batch_first(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Four dimensions, tokens in the second."""
    cp, out = size_of(group), []
    rows = torch.stack([x, -x]).unflatten(-1, (-1, 3))
    for start, stop in pairwise(cu.tolist()):
        part = rows[:, start // cp : stop // cp].unflatten(2, (cp, -1))
        received = AllToAll.apply(part.permute(2, 0, 1, 3, 4).contiguous(), group)
        out.append(unzigzag(received.transpose(0, 1).flatten(1, 2), cp, 1))
    return torch.cat(out, 1)


def with_autograd(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The differentiable functional collective."""
    cp, out = size_of(group), []
    for start, stop in pairwise(cu.tolist()):
        send = torch.cat(x[start // cp : stop // cp].chunk(cp, -1))
        splits = [(stop - start) // cp] * cp
        out.append(unzigzag(funcol.all_to_all_single_autograd(send, splits, splits, group), cp))
    return torch.cat(out)


def empty_skipped(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    for i in range(len(cu) - 1):
        start, stop = cu[i].item(), cu[i + 1].item()
        if start == stop:
            continue
        out.append(gathered(x[start // cp : stop // cp], group))
    return torch.cat(out)


def own_weights(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """In the loop, weights of the heads that this rank has: constants that other ranks do not share."""
    cp, rank, out = size_of(group), dist.get_rank(group), []
    weights = torch.arange(cp * WIDTH, dtype=x.dtype)
    for start, stop in pairwise(cu.tolist()):
        out.append(gathered(x[start // cp : stop // cp], group) * weights[rank * WIDTH : (rank + 1) * WIDTH])
    return torch.cat(out)


def numbered(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    for i, (start, stop) in enumerate(pairwise(cu.tolist())):
        out.append(gathered(x[start // cp : stop // cp], group) * i)
    return torch.cat(out)


def buffer(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What is used are the parts of all ranks, as they came."""
    cp, out = size_of(group), []
    for start, stop in pairwise(cu.tolist()):
        send = zigzag(x[start:stop], cp).reshape(cp, (stop - start) // cp, WIDTH)
        received = torch.zeros_like(send)
        dist.all_to_all_single(received, send, group=group)
        out.append((received * 2).transpose(0, 1).flatten(1))
    return torch.cat(out)


def copied_into(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Results are copied into parts of a new row."""
    cp = size_of(group)
    out = torch.zeros(x.shape[0] * cp, x.shape[1] // cp, dtype=x.dtype)
    for start, stop in pairwise(cu.tolist()):
        out[start:stop].copy_(gathered(x[start // cp : stop // cp], group))
    return out


def boundaries_written_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The shard's boundaries were computed from others than ``cu`` holds when the loop runs."""
    cp = size_of(group)
    local = cu // cp
    cu.sub_(2 * cp).clamp_(min=0)
    return torch.cat([gathered(x[s:e], group) for s, e in zip(local[:-1], local[1:])])  # noqa: B905, RUF007


def shard_boundaries_written(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    local = cu // cp
    local.mul_(2).sub_(local // 2).floor_divide_(3).mul_(2)  # as it was, but not for who looks at `cu // cp`
    return torch.cat([gathered(x[s:e], group) for s, e in zip(local[:-1], local[1:])])  # noqa: B905, RUF007


def boundaries_written_behind(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Between the loop and what is made of its list; no backward keeps boundaries of its own."""
    cp, documents, x = size_of(group), [], x.detach()
    for i in range(len(cu) - 1):
        documents.append(gathered(x[cu[i] // cp : cu[i + 1] // cp], group))
    cu.fill_(0)
    return torch.cat(documents)


def layer(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, width, documents, back = size_of(group), x.shape[1], [], []
    weights = torch.arange(width * width, dtype=x.dtype).cos().view(width, width) / 4
    y = F.linear(x, weights)
    for i in range(len(cu) - 1):
        documents.append(gathered(y[cu[i] // cp : cu[i + 1] // cp], group))
    z = torch.tanh(torch.cat(documents)) * 2
    for i in range(len(cu) - 1):
        back.append(scatter_sequence(zigzag(z[cu[i] : cu[i + 1]], cp), group))
    return x + F.linear(torch.cat(back), weights.T)


def layers(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Two layers, to heads and back in each."""
    return layer(layer(x, cu, group), cu, group)


# === Left as they are ===========================================================================================


def half_counts(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """In units of half a shard: where the first document starts, half of it may be no integer."""
    cp = size_of(group)
    half = cu // (2 * cp)
    return torch.cat([gathered(x[2 * s : 2 * e], group) for s, e in zip(half[:-1], half[1:])])  # noqa: B905, RUF007


def buffer_read_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    for start, stop in pairwise(cu.tolist()):
        send = zigzag(x[start:stop], cp).reshape(cp, (stop - start) // cp, WIDTH)
        received = torch.zeros_like(send)
        before = received + 1
        dist.all_to_all_single(received, send, group=group)
        out.append((received * before).transpose(0, 1).flatten(1))
    return torch.cat(out)


def copied_over(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Results are copied into the row that is exchanged."""
    cp = size_of(group)
    x = x.clone()
    for start, stop in pairwise(cu.tolist()):
        x[start:stop].copy_(scatter_sequence(zigzag(x[start:stop], cp), group).reshape(stop - start, WIDTH))
    return x


def next_changed(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Each document changes those after it."""
    cp, out = size_of(group), []
    x = x.clone()
    for start, stop in pairwise(cu.tolist()):
        out.append(gathered(x[start // cp : stop // cp], group))
        x[stop // cp :] += 1
    return torch.cat(out)


def detached(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    out = [gathered(x[s // cp : e // cp].detach(), group) for s, e in pairwise(cu.tolist())]
    return torch.cat(out) + x.sum()


def row_detached_in_the_loop(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    out = [gathered(x.detach()[s // cp : e // cp], group) for s, e in pairwise(cu.tolist())]
    return torch.cat(out) + x.sum()


def hooked(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    for start, stop in pairwise(cu.tolist()):
        part = x[start // cp : stop // cp]
        if part.requires_grad:
            part.register_hook(lambda grad: grad * 2)
        out.append(gathered(part, group))
    return torch.cat(out)


class ToHeads(torch.autograd.Function):
    """The whole exchange in one function, its backward by `back`."""

    @staticmethod
    def back(grad: Tensor, cp: int) -> Tensor:
        return zigzag(grad, cp)

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        send = x.reshape(x.size(0), size_of(group), -1).permute(1, 0, 2).contiguous()
        received = torch.empty_like(send)
        dist.all_to_all_single(received, send, group=group)
        return unzigzag(received.reshape(-1, received.size(-1)), size_of(group))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _parts_back(zigzag(grad, size_of(ctx.group)), ctx.group), None


class ToHeadsMisordered(ToHeads):
    """Its backward takes each rank's two chunks in the wrong order."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        cp = size_of(ctx.group)
        chunks = grad.chunk(2 * cp)
        ordered = torch.cat([chunks[c] for r in range(cp) for c in (2 * cp - 1 - r, r)])
        return _parts_back(ordered, ctx.group), None


class ToHeadsScaled(ToHeads):
    """Its gradient is half of what it should be."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _parts_back(zigzag(grad, size_of(ctx.group)), ctx.group) / 2, None


def _parts_back(ordered: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    send = ordered.reshape(cp, -1, ordered.size(-1)).contiguous()
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    return received.transpose(0, 1).reshape(ordered.size(0) // cp, -1)


def _by(function: Any, x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    return torch.cat([function.apply(x[s // cp : e // cp], group) for s, e in pairwise(cu.tolist())])


def one_function(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return _by(ToHeads, x, cu, group)


def misordered_backward(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return _by(ToHeadsMisordered, x, cu, group)


def scaled_backward(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return _by(ToHeadsScaled, x, cu, group)


def first_tokens_twice(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """As many tokens as the document has, but those at the start of the row."""
    cp, out = size_of(group), []
    for start, stop in pairwise(cu.tolist()):
        out.append(gathered(x[: (stop - start) // cp], group))
    return torch.cat(out)


def copied_beside(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Documents of another row are copied, and are read from the copy."""
    cp, out = size_of(group), []
    places = torch.arange(x.shape[0] * cp, dtype=x.dtype)[:, None]
    for start, stop in pairwise(cu.tolist()):
        document = places[start:stop]
        copy = torch.zeros_like(document)
        copy.copy_(document)
        out.append(gathered(x[start // cp : stop // cp], group) + copy)
    return torch.cat(out)


@dataclasses.dataclass(frozen=True)
class Hard:
    program: Callable[..., Tensor]
    sharded: bool = True
    exchanges: int = 1
    backwards: int | None = None
    """Exchanges of gradients, if not as many."""
    differentiable: bool = True
    tails: bool = True
    """May the row have slots of no document? (Not where it is split by lengths, or the result is added to the row.)"""
    graphs: int = 2
    """Of one document, too. (Where a vector of lengths is divided, torch asks whether there is one.)"""
    parts: int = 2
    """Of a document on one rank: documents divide by so many times the group's size."""
    code: str = ""
    """Why it is left."""


REWRITTEN = {
    hard.program.__name__: hard
    for hard in (
        Hard(numbers),
        Hard(kept.batch_in_front),
        Hard(kept.batch_behind),
        Hard(kept.heads_with_batch, sharded=False),
        Hard(kept.called_behind, differentiable=False),
        Hard(kept.lambdas, differentiable=False),
        Hard(kept.bound_methods, differentiable=False),
        Hard(kept.partials, differentiable=False),
        Hard(kept.shared_variable_changes, differentiable=False),
        Hard(kept.functions_in_rows),
        Hard(computed.autocast_before),
        Hard(computed.without_gradient_before),
        Hard(numbers_back, sharded=False),
        Hard(computed.with_einops),
        Hard(computed.zigzag_with_einops),
        Hard(computed.converted_before),
        Hard(computed.counted_before),
        Hard(detached, differentiable=False),
        Hard(row_detached_in_the_loop, differentiable=False),
        Hard(computed.activated_before),
        Hard(computed.projected_before, differentiable=False),
        Hard(computed.normalised_heads),
        Hard(computed.counted_on, tails=False),
        Hard(computed.split_by_a_list, tails=False),
        Hard(computed.projected_parts_of_a_split, differentiable=False, tails=False, graphs=3),
        Hard(computed.relu_of_parts_of_a_split, tails=False, graphs=3),
        Hard(split_by_lengths, tails=False),
        Hard(split_by_lengths_back, sharded=False, tails=False),
        Hard(named_sections),
        Hard(batch_first),
        Hard(with_autograd),
        Hard(empty_skipped),
        Hard(own_weights),
        Hard(numbered),
        Hard(copied_into),
        Hard(buffer, sharded=False, differentiable=False),
        Hard(boundaries_written_before, tails=False),
        Hard(shard_boundaries_written, tails=False),
        Hard(boundaries_written_behind, differentiable=False),
        Hard(layers, exchanges=4, tails=False),
        Hard(one_function),
        Hard(spelled.sections_stacked, sharded=False),
        Hard(spelled.halves_of_ranks),
        Hard(spelled.pieces_by_other_names),
        Hard(spelled.round_trip, exchanges=2, tails=False),
        Hard(spelled.three_dtypes, sharded=False, exchanges=3),
        Hard(spelled.order_of_chunks, sharded=False),
        Hard(spelled.heads_apart, sharded=False),
        Hard(spelled.batch_in_front, sharded=False),
        Hard(spelled.comprehension_of_parts, sharded=False, tails=False),
        Hard(spelled.positions, sharded=False),
        Hard(spelled.filled_list),
        Hard(spelled.given_buffer, sharded=False),
        Hard(spelled.own_function, sharded=False),
        Hard(spelled.one_rank_used, sharded=False),
        Hard(spelled.lists, differentiable=False),
        Hard(spelled.handles, differentiable=False),
        Hard(spelled.lists_in_a_function),
        Hard(spelled.differentiable_lists),
        Hard(library.split_by_the_length_of_a_part, exchanges=2, tails=False),
        Hard(library.rows_of_two),
        Hard(library.dicts_of_two),
        Hard(twice.there_and_back, exchanges=2, tails=False),
        Hard(twice.back_into_the_row, exchanges=2),
        Hard(twice.added_to_the_document, exchanges=2, tails=False),
        Hard(twice.added_to_a_part_of_a_split, exchanges=2, tails=False, graphs=3),
        Hard(twice.back_and_there, exchanges=3, tails=False),
        Hard(twice.two_lists, tails=False),
        Hard(twice.function_of_documents, tails=False),
        Hard(twice.attention_between, exchanges=2, tails=False, differentiable=True),
        Hard(twice.sizes_of_the_shard, exchanges=2, tails=False),
        Hard(copied_beside),
        Hard(filled.filled_by_ranks),
        Hard(filled.sent_from_parts, sharded=False),
        Hard(filled.changed_beside),
        Hard(placed.by_ranks),
        Hard(placed.by_views, parts=1),
        Hard(placed.by_columns, sharded=False),
        Hard(placed.pieces_by_columns, sharded=False, parts=1),
        Hard(pieces.pieces_to_heads, parts=1),
        Hard(pieces.pieces_of_own_boundaries, parts=1),
        Hard(pieces.pieces_to_tokens, sharded=False, parts=1),
        Hard(pieces.pieces_by_sections, sharded=False, tails=False, parts=1),
        Hard(pieces.pieces_into_the_shard, sharded=False, parts=1),
        Hard(pieces.pieces_in_lists, exchanges=2, tails=False, parts=1),
        Hard(pieces.pieces_there_and_back, exchanges=2, tails=False, parts=1),
        Hard(pieces.pieces_in_one_loop, exchanges=2, tails=False, parts=1),
        Hard(waited.waited_behind, differentiable=False),
        Hard(waited.waited_in_pairs, differentiable=False),
        Hard(waited.waited_by_number, differentiable=False),
        Hard(waited.lists_of_handles, differentiable=False),
        Hard(waited.step_by_step),
        Hard(waited.chosen_by_written_numbers),
        Hard(waited.viewed_by_sizes),
        Hard(waited.changed_when_received),
        Hard(waited.times_new_memory, exchanges=2, tails=False),
        Hard(gather.lists_gathered, differentiable=False),
        Hard(gather.gathered_behind, differentiable=False),
        Hard(gather.own_gradient, backwards=0),
        Hard(gather.gradient_scattered, parts=1),
        Hard(gather.gradient_reduced, tails=False),
        Hard(gather.functional, differentiable=False, parts=1),
        Hard(gather.own_columns, differentiable=False),
        Hard(gather.gathered_and_exchanged, exchanges=2),
        Hard(joined.three_rows_in_a_message),
        Hard(joined.rows_stacked_in_a_message),
        Hard(joined.rows_one_of_which_is_detached),
        Hard(joined.two_rows_back, sharded=False),
        Hard(joined.two_rows_gathered, differentiable=False),
        Hard(joined.parts_of_an_exchange, exchanges=2, tails=False),
        Hard(joined.parts_taken_apart_by_number, exchanges=2, tails=False),
    )
}
LEFT = {
    hard.program.__name__: hard
    for hard in (
        Hard(half_counts, code="unknown-bounds"),
        Hard(buffer_read_before, sharded=False, code="aliasing"),
        Hard(next_changed, code="aliasing"),
        Hard(copied_over, sharded=False, code="aliasing"),
        Hard(computed.scaled_more_and_more, code="not-zigzag"),
        Hard(computed.parts_of_a_split_scaled_more_and_more, tails=False, code="not-zigzag"),
        Hard(computed.dropped_out_before, code="not-zigzag"),
        Hard(computed.written_before, code="aliasing"),
        Hard(hooked, code="aliasing"),
        Hard(misordered_backward, code="not-zigzag"),
        Hard(scaled_backward, code="not-zigzag"),
        Hard(first_tokens_twice, code="not-zigzag"),
        Hard(spelled.halves_swapped, sharded=False, code="not-zigzag"),
        Hard(spelled.first_chunk_for_all, sharded=False, code="not-zigzag"),
        Hard(spelled.buffer_looked_at, sharded=False, code="aliasing"),
        Hard(spelled.result_changed, sharded=False, code="aliasing"),
        Hard(spelled.same_buffer_twice, sharded=False, code="aliasing"),
        Hard(spelled.scaled_into, sharded=False, code="aliasing"),
        Hard(spelled.added_into, sharded=False, code="aliasing"),
        Hard(spelled.uneven_parts, sharded=False, code="aliasing"),
        Hard(spelled.uneven_lists, sharded=False, code="aliasing"),
        Hard(library.split_in_three, sharded=False, code="not-zigzag or body-not-traceable"),
        Hard(library.one_row_kept, code="not-zigzag"),
        Hard(twice.one_more_than_the_shard, code="not-zigzag"),
        Hard(twice.received_used_twice, code="not-zigzag"),
        Hard(twice.next_document_written, code="aliasing"),
        Hard(twice.back_in_order, code="two-boundaries"),
        Hard(twice.function_that_forgets, code="not-zigzag or aliasing"),
        Hard(filled.half_filled, sharded=False, code="not-zigzag"),
        Hard(filled.filled_and_scaled, sharded=False, code="aliasing"),
        Hard(placed.all_but_one, code="not-zigzag or aliasing"),
        Hard(placed.in_another_order, code="not-zigzag"),
        Hard(placed.read_in_between, code="aliasing"),
        Hard(placed.added_to_afterwards, code="aliasing"),
        Hard(placed.added_part_by_part, code="aliasing"),
        Hard(placed.over_what_is_sent, code="aliasing or not-zigzag"),
        Hard(placed.converted, code="aliasing"),
        Hard(pieces.pieces_from_the_end, code="not-zigzag"),
        Hard(pieces.pieces_of_the_next, sharded=False, code="not-zigzag"),
        Hard(pieces.every_other_token, code="not-zigzag"),
        Hard(pieces.pieces_of_heads_from_the_end, code="not-zigzag"),
        Hard(waited.written_before_it_is_viewed, code="aliasing"),
        Hard(waited.changed_and_sent_back, code="not-zigzag"),
        Hard(waited.numbers_of_each_rank, code="not-zigzag"),
        Hard(waited.numbers_changed_by_documents, code="no-rule"),
        Hard(waited.row_changed_between, code="not-zigzag"),
        Hard(waited.changed_before_sent, code="not-zigzag or aliasing"),
        Hard(waited.gradient_changed, code="not-zigzag or aliasing"),
        Hard(gather.next_gradient, code="not-zigzag"),
        Hard(gather.halved_gradient, code="not-zigzag"),
        Hard(gather.largest_gradient, code="not-zigzag"),
        Hard(gather.two_gradients, code="not-zigzag"),
        Hard(gather.changed_when_gathered, code="aliasing"),
        Hard(joined.rows_of_two_dtypes, code="not-zigzag"),
        Hard(joined.rows_one_behind_the_other, code="not-zigzag"),
        Hard(joined.shard_beside_the_whole, code="not-zigzag"),
        Hard(joined.parts_that_wrap, code="not-zigzag"),
        Hard(kept.counts_its_calls, code="list-append"),
        Hard(kept.grows_its_list, code="list-use"),
        Hard(kept.last_document_for_all, code="leaked-local"),
        Hard(kept.wrong_way_with_batch, code="not-zigzag or aliasing"),
        Hard(kept.written_with_batch, code="aliasing"),
    )
}
