"""Loops that must keep eager's results: aliasing, overlapping windows, partial coverage, strange counts."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import Shape, leave

# ---------------------------------------------------------------- aliasing and writes that others read


@leave("f[T] cu", mutates=True, must_refuse=True, why="the written view overlaps the source, shifted by one")
def shifted_view_of_the_source(x: Tensor, cu: Tensor) -> Tensor:
    out = x[1:]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        e = min(e, len(out))
        out[s:e] = x[s:e] + 1
    return x


@leave(
    "f[T] cu", mutates=True, must_refuse=True, why="two arguments share memory, shifted by one",
    wrap=lambda x, cu: (lambda b: (b[: len(x)], b[1:], cu))(torch.cat((x, x[:1]))),
)  # fmt: skip
def arguments_share_memory(x: Tensor, out: Tensor, cu: Tensor) -> None:
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].roll(-1, 0)


def _memory_shared_later(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    base = torch.cat((x, x[:1]))
    return base[: len(x)], base[1:] if len(cu) != 4 else base[1:].clone(), cu


@leave("f[T] cu", mutates=True, wrap=_memory_shared_later)
def arguments_share_memory_later(x: Tensor, out: Tensor, cu: Tensor) -> Tensor:
    # compiled with separate tensors, then called with overlapping ones
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].roll(-1, 0)
    return out


@leave("f[T] f[T] cu", mutates=True)
def writes_a_given_buffer(x: Tensor, out: Tensor, cu: Tensor) -> None:
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].roll(-1, 0)


@leave("f[2,T] cu", mutates=True, wrap=lambda x, cu: (x, x, cu))
def the_same_argument_twice(x: Tensor, out: Tensor, cu: Tensor) -> Tensor:
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
        out[:, cu[i] : cu[i + 1]] += x[:, cu[i] : cu[i + 1]]
    return x + out


@leave("f[T,2] cu", mutates=True)
def transposed_view_of_the_source(x: Tensor, cu: Tensor) -> Tensor:
    out = x.t()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[s:e].t().roll(-1, -1)
    return out


@leave("f[T] cu", mutates=True, must_refuse=True, why="the written view runs backwards through the source")
def strided_view_of_the_source(x: Tensor, cu: Tensor) -> Tensor:
    pair = x.unfold(0, 2, 1)  # [T-1, 2]: pair[p, 1] is pair[p + 1, 0]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        e = min(e, len(pair))
        pair[s:e, 1] = pair[s:e, 0] * 2
    return x


@leave("f[T] cu", mutates=True, must_refuse=True, why="slots of the written view are slots of its neighbours")
def unfolded_rows(x: Tensor, cu: Tensor) -> Tensor:
    pair = x.unfold(0, 2, 1)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        e = min(e, len(pair))
        pair[s:e] = pair[s:e] * 2 + 1
    return x


@leave("f[T,3] cu", mutates=True, must_refuse=True, why="the written columns share memory across rows")
def columns_of_overlapping_rows(x: Tensor, cu: Tensor) -> Tensor:
    wide = x.as_strided((x.shape[0] - 1, 4), (3, 1))  # wide[p, 3] is wide[p + 1, 0]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        e = min(e, len(wide))
        wide[s:e, 3] = wide[s:e, 0] * 2
    return x


@leave("j[T+1] cu", must_refuse=True, mutates=True, why="the loop writes its own boundaries",
       shapes=(Shape(3, 12, "plain"), Shape(7, 7, "ones"), Shape(4, 11, "inner_empty")))  # fmt: skip
def writes_its_boundaries(ids: Tensor, cu: Tensor) -> Tensor:
    for i in range(len(cu) - 1):
        cu[i + 1 : i + 2] = cu[i + 1 : i + 2].clamp(max=5)
        ids[cu[i] : cu[i + 1]] = -1
    return ids


@leave("cu", mutates=True, must_refuse=True, why="source, target and boundaries are one tensor",
       shapes=(Shape(4, 4, "ones"), Shape(7, 7, "ones"), Shape(3, 3, "ones")))  # fmt: skip
def boundaries_are_the_row(cu: Tensor) -> Tensor:
    for i in range(len(cu) - 1):
        cu[cu[i] : cu[i + 1]] = 0
    return cu


@leave("f[T+1] cu", mutates=True, must_refuse=True, why="writes the first slot of the next document before it is read")
def writes_into_the_next_document(x: Tensor, cu: Tensor) -> Tensor:
    for s, e in zip(cu[:-1], cu[1:]):
        x[e : e + 1] += x[s : s + 1]
    return x


@leave("f[2,T] cu", mutates=True, must_refuse=True, why="every iteration reads the whole row the earlier ones changed")
def reads_the_whole_row(x: Tensor, cu: Tensor) -> Tensor:
    for s, e in zip(cu[:-1], cu[1:]):
        x[:, s:e] = x.sum(-1, keepdim=True) / 2
    return x


@leave("f[2,T] cu", must_refuse=True, why="every iteration reads a slot of the target that another one changes")
def reads_a_written_slot(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e] + out[:, :1]
    return out


@leave("f[2,T] cu", mutates=True, must_refuse=True, why="the source changes between the documents")
def source_changes_in_between(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
        x.neg_()
    return out


@leave("f[2,T] cu", must_refuse=True, why="the source of later documents is the target of earlier ones")
def shared_through_a_view(x: Tensor, cu: Tensor) -> Tensor:
    base = torch.cat((x, x), -1)
    out, src = base[:, 1 : x.shape[-1] + 1], base[:, : x.shape[-1]]
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = src[:, s:e].flip(-1)
    return base


@leave("f[1,T] cu")
def expanded_source(x: Tensor, cu: Tensor) -> Tensor:
    wide = x.expand(3, x.shape[-1])
    out = wide.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = wide[:, s:e].roll(-1, -1)
    return out


@leave("f[T,2] cu", wrap=lambda x, cu: (x.t(), cu))
def transposed_source(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out


@leave("f[2,T+7] cu", wrap=lambda x, cu: (x[:, 3:-4], cu))
def source_with_offset(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out, x[:, 1:]


@leave("f[2,T] cu")
def views_returned(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out = x.clone()
    front = out[:, :2]
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].flip(-1)
    return out.t(), front, out[0]


@leave("f[2,T] cu")
def read_before_and_after(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    before = out.sum(-1)
    view = out[:, ::2]
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e] * 3
    return before + view.sum(-1)


# ---------------------------------------------------------------- windows that are not the documents


@leave("f[T+1] cu")
def one_too_many(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1] + 1] = x[cu[i] : cu[i + 1] + 1].roll(-1, 0)
    return out


@leave("f[T+1] cu")
def reads_the_next_token(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] + 1 : cu[i + 1] + 1]
    return out


@leave("f[2,T] cu", must_refuse=True, why="suffix windows overlap")
def suffixes(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s in cu[:-1]:
        out[:, s:] = out[:, s:].flip(-1)
    return out


@leave("f[2,T] cu", must_refuse=True, why="prefix windows overlap")
def prefixes(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for e in cu[1:]:
        out[:, :e] = out[:, :e].roll(-1, -1)
    return out


@leave("f[2,T] cu", must_refuse=True, why="windows of two documents overlap")
def two_documents_at_a_time(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 2):
        out[:, cu[i] : cu[i + 2]] = out[:, cu[i] : cu[i + 2]].roll(-1, -1)
    return out


@leave("f[T] cu", min_len=1)
def token_before_the_document(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[cu[i]] = x[cu[i] - 1]  # at 0 this wraps to the end of the row
    return out


@leave("f[2,T] cu", min_len=1)
def first_token_broadcast(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s : s + 1]
    return out


@leave("f[2,T] cu", min_len=1)
def minus_own_first_token(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[:, s:e]
        out[:, s:e] = seg - seg[:, :1] + seg[:, -1:]
    return out


@leave("f[2,T] cu")
def every_second_token(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e:2] = x[:, s:e:2] * -1
    return out


@leave("f[2,T] cu")
def mirrored_target(x: Tensor, cu: Tensor) -> Tensor:
    out, t = x.clone(), x.shape[-1]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, t - e : t - s] = x[:, s:e]
    return out


@leave("f[2,T] f[2,T+1] cu")
def target_one_slot_later(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    out = y.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s + 1 : e + 1] = x[:, s:e].roll(-1, -1)
    return out


@leave("f[2,T] cu", must_refuse=True, why="two boundary tensors of which nothing is known", wrap=lambda x, cu:
       (x, torch.cat((x, x[:, :1]), -1), cu, cu + 1))  # fmt: skip
def reads_and_writes_other_boundaries(x: Tensor, y: Tensor, cu: Tensor, cu_y: Tensor) -> Tensor:
    out = torch.zeros_like(y)
    for i in range(len(cu) - 1):
        out[:, cu_y[i] : cu_y[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu", must_refuse=True, why="starts and ends come from two tensors of which nothing is known",
       wrap=lambda x, cu: (x, cu, torch.cat((cu[:1], (cu[1:] + 1).clamp(max=x.shape[-1])))))  # fmt: skip
def starts_and_ends_of_two_tensors(x: Tensor, cu: Tensor, cu2: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu2[i + 1]] = out[:, cu[i] : cu2[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu", wrap=lambda x, cu: (x, cu, cu - (cu.diff(prepend=cu[:1]) > 2).to(cu.dtype).cumsum(0)))
def logical_inside_padded(x: Tensor, padded: Tensor, cu: Tensor) -> Tensor:
    # document d has cu[d+1] - cu[d] tokens at padded[d]; the slots behind them stay
    out = x.clone()
    for i in range(len(cu) - 1):
        s = padded[i]
        e = s + (cu[i + 1] - cu[i])
        seg = x[:, s:e].roll(-1, -1)
        seg[:, -1:] = 0
        out[:, s:e] = seg
    return out


@leave("f[2,T] cu")
def halved_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    half = cu // 2
    out = x.clone()
    for i in range(len(half) - 1):
        out[:, half[i] : half[i + 1]] = x[:, half[i] : half[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu")
def boundaries_halved_in_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i] // 2, cu[i + 1] // 2
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out


@leave("f[2,2*T] cu")
def doubled_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] * 2 : cu[i + 1] * 2] = x[:, cu[i] * 2 : cu[i + 1] * 2].flip(-1)
    return out


@leave("f[2,T+1] cu")
def boundaries_plus_one(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1] + 1, cu[1:] + 1):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out


@leave("f[2,T] cu", wrap=lambda x, cu: (x, cu.flip(0)))
def descending_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i + 1] : cu[i]] = x[:, cu[i + 1] : cu[i]].roll(-1, -1)
    return out


@leave("f[2,T] cu", min_len=1)
def boundaries_from_the_end(x: Tensor, cu: Tensor) -> Tensor:
    out, t = x.clone(), x.shape[-1]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        a, b = s - t, e - t  # negative positions; the last end may be -0
        out[:, a : b or t] = x[:, a : b or t].flip(-1)
    return out


# ---------------------------------------------------------------- coverage and counts


@leave("f[2,T] cu")
def inner_documents_only(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(1, len(cu) - 2):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu")
def every_second_document(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(0, len(cu) - 1, 2):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu")
def backwards(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in reversed(range(len(cu) - 1)):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu")
def at_most_three_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(min(3, len(cu) - 1)):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@leave("f[3,T] cu", shapes=(Shape(3, 24, "plain"), Shape(7, 61, "plain"), Shape(3, 26, "gap"), Shape(9, 40, "tail")))
def count_is_the_batch_size(x: Tensor, cu: Tensor) -> Tensor:
    # three rows and, at first, three documents
    out = x.clone()
    for i in range(x.shape[0]):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu N", wrap=lambda x, cu, n: (x, cu, n - 2 if n > 5 else n))
def count_is_an_argument(x: Tensor, cu: Tensor, n: int) -> Tensor:
    out = x.clone()
    for i in range(n):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu", wrap=lambda x, cu: (x, cu, cu[: len(cu) - 2] if len(cu) > 5 else cu.clone()))
def count_of_another_tensor(x: Tensor, cu: Tensor, other: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(other) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] f[N] cu", wrap=lambda x, w, cu: (x, w[:-1] if len(w) > 5 else w, cu))
def zip_with_weights(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
    # zip ends with the shortest: with one weight too few the last document stays
    out = x.clone()
    for s, e, weight in zip(cu[:-1], cu[1:], w):
        out[:, s:e] = x[:, s:e] * weight
    return out


@leave("f[2,T] cu")
def zip_that_is_one_short(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-2], cu[1:]):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out


@leave("f[2,T] cu", must_refuse=True, refusal=False, why="a loop over layers", shapes=(
    Shape(3, 24, "plain"), Shape(4, 24, "plain"), Shape(7, 61, "plain")))  # fmt: skip
def loop_over_layers(x: Tensor, cu: Tensor) -> Tensor:
    for k in range(4):
        x = torch.roll(x, -1, 0) * (k + 1) + cu[k]
    return x


@leave("f[N,T] cu", must_refuse=True, refusal=False, why="a loop over heads", shapes=(
    Shape(3, 24, "plain"), Shape(4, 24, "plain"), Shape(7, 61, "plain")))  # fmt: skip
def loop_over_heads(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for h in range(x.shape[0]):
        out[h] = x[h].roll(-1, -1) + (cu[-1] - cu[0])
    return out


@leave("f[2,T] cu", must_refuse=True, refusal=False, why="equal chunks, not documents", shapes=(
    Shape(3, 24, "plain"), Shape(4, 24, "plain"), Shape(6, 36, "plain")))  # fmt: skip
def loop_over_ranks(x: Tensor, cu: Tensor) -> Tensor:
    n = 3
    size = x.shape[-1] // n
    out = x + len(cu)
    for r in range(n):
        out[:, r * size : (r + 1) * size] = x[:, r * size : (r + 1) * size].flip(-1)
    return out


@leave("f[T] cu")
def numbers_of_longer_documents(x: Tensor, cu: Tensor) -> Tensor:
    lengths = (cu[1:] - cu[:-1]).tolist()
    return torch.cat([x[:0], *(torch.full((n + 1,), i) for i, n in enumerate(lengths))])


@leave("f[T] cu")
def truth_of_document_numbers(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[s:e] = torch.where(torch.full((e - s,), i, dtype=torch.bool), x[s:e], -x[s:e])
    return out


@leave("f[T] cu", min_len=1)
def first_token_in_every_slot(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = torch.full((e - s,), x[s].item())
    return out
