"""Loops that must be rewritten: accumulators, in-place forms, several fields, chains of loops."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .harness import COUNTED, Shape, program

# ---------------------------------------------------------------- accumulators


@program("f[2,T] cu", tail=False)
def into_empty_like(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@program("i[2,T] cu")
def into_zeros(ids: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(ids.size(0), ids.size(1), dtype=ids.dtype)
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = ids[:, cu[i] : cu[i + 1]].flip(-1)
    return out


@program("i[2,T] cu")
def into_new_full(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.new_full(ids.shape, -100)
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = ids[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@program("f[T,3] cu")
def into_ones_multiplied(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.ones_like(x)
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] *= x[s:e].roll(1, 0)
    return out


@program("f[T,3] cu")
def into_zeros_added(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(x.shape)
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] += x[s:e].roll(1, 0)
        out[s:e].add_(x[s:e])
    return out


@program("f[2,T] cu")
def slice_copy(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]].copy_(x[:, cu[i] : cu[i + 1]].roll(-1, -1))
    return out


@program("f[2,T] cu")
def narrow_copy(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.narrow(-1, s, e - s).copy_(x.narrow(-1, s, e - s).flip(-1))
    return out


@program("f[2,T] cu")
def torch_narrow(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        start, length = int(cu[i]), int(cu[i + 1] - cu[i])
        torch.narrow(out, 1, start, length).copy_(torch.roll(torch.narrow(x, 1, start, length), 1, 1))
    return out


@program("i[T] cu", depends=False)
def coverage_by_fill(ids: Tensor, cu: Tensor) -> Tensor:
    covered = torch.zeros_like(ids)
    for s, e in zip(cu[:-1], cu[1:]):
        covered[s:e] = 1
    return ids * covered


@program("f[2,T] cu")
def coverage_by_fill_method(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e].fill_(0.5)
        out[:, s:e][:, :1].zero_()
    return out


@program("b[2,T,4] cu")
def bfloat16_hidden(h: Tensor, cu: Tensor) -> Tensor:
    out = h.clone()
    for i in range(len(cu) - 1):
        seg = h[:, cu[i] : cu[i + 1]].roll(1, 1)
        seg[:, :1] = 0
        out[:, cu[i] : cu[i + 1]] = seg - h[:, cu[i] : cu[i + 1]]
    return out


@program("d[T] cu")
def float64_row(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].roll(-1) * 2
    return out


@program("m[2,T] cu")
def bool_row(mask: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(mask)
    for i in range(len(cu) - 1):
        moved = mask[:, cu[i] : cu[i + 1]].roll(-1, -1)
        moved[:, -1:] = False
        out[:, cu[i] : cu[i + 1]] = moved & mask[:, cu[i] : cu[i + 1]]
    return out


# ---------------------------------------------------------------- in place on the source


@program("f[2,T] cu", mutates=True)
def in_place_slice(x: Tensor, cu: Tensor) -> Tensor:
    for i in range(len(cu) - 1):
        x[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return x


@program("i[T] cu", mutates=True)
def in_place_view_copy(ids: Tensor, cu: Tensor) -> None:
    for s, e in zip(cu[:-1], cu[1:]):
        doc = ids[s:e]
        doc.copy_(doc.flip(0))


@program("f[2,T] cu", mutates=True, depends=False)
def in_place_scale(x: Tensor, cu: Tensor) -> Tensor:
    for s, e in zip(cu[:-1], cu[1:]):
        x[:, s:e] *= 2
        x[:, s:e].add_(1)
    return x.sum(-1)


@program("i[2,T] cu", mutates=True)
def in_place_last_token(labels: Tensor, cu: Tensor) -> Tensor:
    for s, e in zip(cu[:-1], cu[1:]):
        labels[:, s:e][:, -1:] = -100
    return labels


@program("f[2,T] cu")
def in_place_on_clone(x: Tensor, cu: Tensor) -> Tensor:
    y = x.clone()
    for i in range(len(cu) - 1):
        doc = y[:, cu[i] : cu[i + 1]]
        doc.mul_(2)
        y[:, cu[i] : cu[i + 1]] = doc.roll(-1, -1)
    return y


@program("f[2,T] cu")
def read_back_what_was_written(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        out[:, s:e] = x[:, s:e].roll(-1, -1)
        out[:, s:e] = out[:, s:e] + out[:, s:e].flip(-1)
    return out


# ---------------------------------------------------------------- several fields


@program("i[1,T] i[1,T] f[1,T] cu")
def three_fields(ids: Tensor, labels: Tensor, weight: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    new_ids, new_labels, new_weight = ids.clone(), labels.clone(), weight.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        a = ids[:, s:e].roll(-1, -1)
        a[:, -1:] = 0
        new_ids[:, s:e] = a
        b = labels[:, s:e].roll(-1, -1)
        b[:, -1:] = -100
        new_labels[:, s:e] = b
        new_weight[:, s:e] = weight[:, s:e].flip(-1)
    return new_ids, new_labels, new_weight


@program("i[1,T] f[1,T] cu", wrap=lambda a, b, cu: ({"ids": a, "weight": b}, cu))
def fields_in_a_dict(batch: dict[str, Tensor], cu: Tensor) -> dict[str, Tensor]:
    out = {}
    for key, value in batch.items():
        moved = value.clone()
        for i in range(len(cu) - 1):
            moved[:, cu[i] : cu[i + 1]] = value[:, cu[i] : cu[i + 1]].roll(-1, -1)
        out[key] = moved
    return out


@program("i[1,T] f[1,T] cu", wrap=lambda a, b, cu: ([a, b], cu))
def fields_inside_the_document_loop(fields: list[Tensor], cu: Tensor) -> list[Tensor]:
    outs = [torch.zeros_like(f) for f in fields]
    for s, e in zip(cu[:-1], cu[1:]):
        for k in range(2):
            outs[k][:, s:e] = fields[k][:, s:e].flip(-1)
    return outs


@program("i[T] f[T,3] cu", tail=False)
def two_lists(ids: Tensor, h: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    a, b = [], []
    for s, e in zip(cu[:-1], cu[1:]):
        a.append(ids[s:e].roll(1, 0))
        b.append(h[s:e].flip(0))
    return torch.cat(a), torch.cat(b, dim=0)


@program("i[T] f[2,T] cu")
def fields_with_other_dims(ids: Tensor, x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    a, b = ids.clone(), x.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        a[s:e] = ids[s:e].roll(-1, 0)
        b[:, s:e] = x[:, s:e].roll(-1, 1)
    return a, b


@program("f[2,T] cu")
def source_and_positions(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, pos = x.clone(), torch.zeros(x.shape[-1], dtype=torch.int64)
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        out[:, s:e] = x[:, s:e].flip(-1)
        pos[s:e] = torch.arange(e - s)
    return out, pos


# ---------------------------------------------------------------- loops after loops


@program("f[2,T] cu")
def two_loops(x: Tensor, cu: Tensor) -> Tensor:
    y = x.clone()
    for i in range(len(cu) - 1):
        y[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    z = torch.zeros_like(y)
    for s, e in zip(cu[:-1], cu[1:]):
        z[:, s:e] = y[:, s:e].flip(-1)
    return z - y


def _roll_once(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        seg = torch.roll(x[..., cu[i] : cu[i + 1]], -1, -1)
        seg[..., -1:] = 0
        out[..., cu[i] : cu[i + 1]] = seg
    return out


@program("i[2,T] cu", where=(_roll_once,))
def chain_of_three(ids: Tensor, cu: Tensor) -> Tensor:
    return _roll_once(_roll_once(_roll_once(ids, cu), cu), cu)


@program("f[2,T] cu", where=(_roll_once,))
def depths_with_sums(x: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for _depth in range(3):
        x = _roll_once(x, cu)
        total = total + x.sum()
    return total


@program("i[2,T] m[2,T] cu", where=(_roll_once,))
def depths_with_fields(ids: Tensor, mask: Tensor, cu: Tensor) -> list[Tensor]:
    outs = []
    for _depth in range(2):
        ids = _roll_once(ids, cu)
        mask = _roll_once(mask, cu)
        outs += [ids, mask]
    return outs


@program("f[2,T] cu", mutates=True)
def loop_then_in_place_loop(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    for i in range(len(cu) - 1):
        x[:, cu[i] : cu[i + 1]] = out[:, cu[i] : cu[i + 1]] * 2
    return out


@program("f[2,T] f[2,T] cu cu64")
def two_boundaries(x: Tensor, y: Tensor, cu: Tensor, other: Tensor) -> Tensor:
    a, b = x.clone(), y.clone()
    for i in range(len(cu) - 1):
        a[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    for j in range(len(other) - 1):
        b[:, other[j] : other[j + 1]] = y[:, other[j] : other[j + 1]].flip(-1)
    return a + b


@program("f[2,T] cu")
def work_around_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    h = (x * 2).relu()
    out = h.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = h[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return (out - h).abs().sum(-1)


@program("f[T] f[T] cu")
def loss_over_shifted(logits: Tensor, target: Tensor, cu: Tensor) -> Tensor:
    shifted, mask = target.clone(), torch.ones_like(target)
    for s, e in zip(cu[:-1], cu[1:]):
        shifted[s:e] = target[s:e].roll(-1, 0)
        mask[s:e][-1:] = 0
    return ((logits - shifted) * mask).sum()


@program("f[T,2] cu")
def stacked_outputs(x: Tensor, cu: Tensor) -> Tensor:
    left, right = torch.zeros_like(x), torch.zeros_like(x)
    for s, e in zip(cu[:-1], cu[1:]):
        left[s:e] = x[s:e].roll(1, 0)
        right[s:e] = x[s:e].roll(-1, 0)
    return torch.stack((left, x, right), dim=-1)


@program("i[T] cu", demand=False)
def rows_of_one_buffer(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.new_zeros((2, ids.shape[0]))
    for s, e in zip(cu[:-1], cu[1:]):
        out[0, s:e] = ids[s:e].roll(1, 0)
        out[1, s:e] = ids[s:e].flip(0)
    return out


@program("i[2,T] cu", demand=False)
def select_a_row(ids: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(ids[0])
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = ids[1, s:e].roll(-1, 0)
    return out


@program("f[2,T] cu", demand=False)
def list_then_stacked_sum(x: Tensor, cu: Tensor) -> Tensor:
    sums = []
    for s, e in zip(cu[:-1], cu[1:]):
        sums.append(x[:, s:e].sum(-1))
    return torch.stack(sums, dim=-1) if sums else x


# ---------------------------------------------------------------- a number per document, in all of its slots


@program("f[T] cu", tail=False)
def document_numbers(x: Tensor, cu: Tensor) -> Tensor:
    lengths = (cu[1:] - cu[:-1]).tolist()
    return x * torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])


@program("f[T] cu")
def document_numbers_in_place(x: Tensor, cu: Tensor) -> Tensor:
    ids = torch.zeros(x.shape[0], dtype=torch.int32)
    for i in range(len(cu) - 1):
        ids[cu[i] : cu[i + 1]] = torch.full((cu[i + 1] - cu[i],), i + 1, dtype=torch.int32)
    return x + ids


@program("f[2,T] cu")
def lengths_in_every_slot(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        scale = torch.full((1, e - s), e - s, dtype=torch.float32)
        out[:, s:e] = x[:, s:e] * scale + x.new_full((2, e - s), fill_value=i)
    return out


@program("f[T,4] cu", tail=False, min_len=1, lead_empty=False)
def outputs_beside_nothing(x: Tensor, cu: Tensor) -> Tensor:
    """Weights of attention that the attention function does not give, as towers of transformers collect them."""
    outputs, weights = [], []
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        output, weight = x[start:end].cumsum(0), None
        outputs.append(output)
        weights.append(weight)
    return torch.cat(outputs)


@program("f[T] cu", shapes=(*COUNTED, Shape(3, 26, "gap")), depends=False)
def numbers_of_slots_in_the_row(x: Tensor, cu: Tensor) -> Tensor:
    """There is no row but that of the documents, which need not begin at its first slot."""
    return torch.cat([torch.arange(s, e) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("f[T] cu", min_len=1)
def both_ends_marked(x: Tensor, cu: Tensor) -> Tensor:
    mark = torch.zeros_like(x, dtype=torch.bool)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mark[s] = True
        mark[e - 1] = True
    return mark


@program("f[T,4] cu", tail=False, min_len=1, lead_empty=False, exact=False)
def nothing_per_document_is_looked_at(x: Tensor, cu: Tensor) -> Tensor:
    """How attention functions ask whether there are weights (LFM3-VL's tower)."""
    outputs, weights = [], []
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outputs.append(x[start:end].cumsum(0))
        weights.append(None)
    found = None if weights[0] is None and weights[-1] is None else tuple(weights)
    return torch.cat(outputs) * (2 if found is None else 1)


@program("f[T,3] cu", tail=False, min_len=1)
def views_of_what_is_stacked(x: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    """As eager lays them out: these are views, and what is written to them is in the tensor."""
    sums = [x[s:e].amax(0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    beside = torch.stack(sums, 1)
    beside.reshape(-1)[::2] = 0
    padded = pad_sequence([x[s:e].cummax(0).values for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])
    padded.flatten()[0] = 7.0
    return beside, padded, padded.view(-1, 3), torch.stack(sums, -1).view(-1)


@program("f[2,3,T] cu", tail=False, min_len=1)
def views_of_turned_documents(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    turned = [x[:, :, s:e].flatten(0, 1).t() for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    last = torch.stack([x[:, :, e - 1] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])
    return torch.cat(turned).view(-1), last.view(-1)
