"""Bodies of loops over documents that leave the packed dimension alone, one idiom each.

A body gets a document ``x`` ([L, 8], floating), its ids ``i`` ([L], int64 in 0..7) and outside parameters ``p``
(``w`` [8, 8], ``b`` [8], ``h`` [2, 8, 4], ``t`` [40, 8], ``one`` [1, 8], ``n`` [3] ints), and gives [L, ...].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Params = dict[str, Tensor]
Body = Callable[[Tensor, Tensor, Params], Tensor]
BODIES: dict[str, Body] = {}


def body(fn: Body) -> Body:
    assert fn.__name__ not in BODIES
    BODIES[fn.__name__] = fn
    return fn


# === Products ================================================================================================


@body
def matmul_weight(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x @ p["w"]


@body
def matmul_vector(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.matmul(x, p["b"])


@body
def weight_times_transposed(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return (p["w"] @ x.transpose(0, 1)).transpose(0, 1)


@body
def vector_times_transposed(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return p["b"] @ x.T


@body
def mm_and_mv(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.mm(x, p["w"]).mv(p["b"])


@body
def addmm_bias(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.addmm(p["b"], x, p["w"], alpha=2) + torch.addmm(x, x, p["w"])


@body
def heads_by_bmm(x: Tensor, i: Tensor, p: Params) -> Tensor:
    heads = torch.stack((x, -x))  # [2, L, 8]
    return torch.bmm(heads, p["h"]).transpose(0, 1).flatten(1)


@body
def batch_per_slot(x: Tensor, i: Tensor, p: Params) -> Tensor:
    m = x.view(-1, 2, 4)
    return m @ m.transpose(-2, -1)


@body
def batch_per_slot_by_weight(x: Tensor, i: Tensor, p: Params) -> Tensor:
    mixed = p["h"][0] @ x.view(-1, 4, 2)  # [L, 8, 2]
    return (
        x.view(-1, 2, 4) @ p["w"][:4, :4] + (p["w"][:4] @ mixed).transpose(-1, -2) + x.view(-1, 2, 4) @ p["b"][:4, None]
    )


@body
def linear_bias(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.linear(x, p["w"], p["b"])


@body
def mlp(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x + F.linear(F.silu(F.linear(x, p["w"])) * F.linear(x, p["w"].t()), p["w"])


@body
def einsum_projection(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.einsum("ld,hdk->lhk", x, p["h"])


@body
def einsum_implicit(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.einsum("ab,bc", x, p["w"])


@body
def einsum_dots(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.einsum("l...d,de->l...e", x.view(-1, 2, 4), p["w"][:4, :4])


@body
def einsum_two_segments(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.einsum("ld,ld,d->l", x, x * 2, p["b"])


@body
def outer_frequencies(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.outer(torch.arange(len(x)).to(x.dtype), p["b"]) + torch.outer(p["b"], x[:, 0]).T


# === Norms, reductions and scans over other dimensions =======================================================


@body
def layer_norm(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.layer_norm(x, (8,), p["b"], p["one"][0], 1e-5)


@body
def rms_norm(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.rms_norm(x, (8,), p["b"], 1e-6)


@body
def hand_written_rms(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * p["b"]


@body
def hand_written_layer_norm(x: Tensor, i: Tensor, p: Params) -> Tensor:
    mean, var = x.mean(1, keepdim=True), x.var(dim=1, unbiased=False, keepdim=True)
    return (x - mean) / torch.sqrt(var + 1e-5) * p["b"]


@body
def normalize(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.normalize(x, dim=-1) + F.normalize(x, 1.0)


@body
def divided_by_norm(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x / (x.norm(dim=-1, keepdim=True) + torch.linalg.vector_norm(x, 2, -1, True))


@body
def softmax_features(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.softmax(x, dim=-1) + x.log_softmax(-1).exp() + torch.softmax(x.view(-1, 2, 4), 1).flatten(1)


@body
def sums(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x.sum(-1) + x.view(-1, 2, 4).sum((1, 2)) + x.T.sum(0) + x.mean(dim=1) + x.T.view(2, 4, -1).sum((0, 1))


@body
def extremes(x: Tensor, i: Tensor, p: Params) -> Tensor:
    largest = x.max(dim=-1)
    smallest, where = torch.min(x, 1)
    return largest.values + smallest + (where + largest.indices) + x.amax(-1) - x.T.amin(0)


@body
def spread_of_values(x: Tensor, i: Tensor, p: Params) -> Tensor:
    var, mean = torch.var_mean(x, -1)
    return x.std(-1) + x.std(dim=-1, correction=0) + x.var(1, False) + var * mean


@body
def logsumexp(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x.logsumexp(-1, keepdim=True) - torch.logsumexp(x, dim=1, keepdim=True) / 2 + x


@body
def products(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x.prod(-1) + x.cumprod(-1)[:, 2]


@body
def scans(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x.cumsum(-1) + x.cummax(-1).values + torch.logcumsumexp(x, 1) + x.cummin(1)[0]


@body
def orders(x: Tensor, i: Tensor, p: Params) -> Tensor:
    top = x.topk(3, dim=-1)
    ranked, places = x.sort(-1, descending=True)
    return top.values.sum(-1, keepdim=True) + ranked + places + x.argsort(dim=-1, stable=True)


@body
def counts(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return (x > 0).any(-1).to(x.dtype) + (x > -1).all(dim=1) + x.argmax(-1) + (x > 0).sum(-1) + x.argmin(1)


@body
def elementwise_max(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.max(x, p["b"]) + torch.min(x, -x)


# === Lookups =================================================================================================


@body
def embedding(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.embedding(i, p["w"])


@body
def embedding_with_padding(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.embedding(i, p["w"], padding_idx=3)


@body
def table_rows(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return p["w"][i] + p["w"][i - 8] + p["w"][:, i].T


@body
def table_ids_of_two_dims(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return p["b"][i[:, None] % torch.ones(2, dtype=i.dtype).add(1)]


@body
def index_select_rows(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return p["w"].index_select(0, i) + torch.index_select(p["w"], 1, i).T


@body
def index_select_columns(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x.index_select(1, p["n"]) + x[:, p["n"]] + x[..., p["n"]]


@body
def one_hot(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.one_hot(i, num_classes=8).to(x.dtype) @ p["w"]


@body
def gathered(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x.log_softmax(-1).gather(-1, i.unsqueeze(-1)).squeeze(-1)


@body
def gathered_order(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x.gather(-1, x.argsort(-1)) + x.gather(1, i[:, None].expand(-1, 8))


@body
def picked_by_arange(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x.log_softmax(-1)[torch.arange(x.shape[0]), i]


@body
def bucketed(x: Tensor, i: Tensor, p: Params) -> Tensor:
    edges = p["b"].sort()[0]
    return torch.bucketize(x, edges) + torch.searchsorted(edges, x, right=True) + 0.0 * x


@body
def learned_positions(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x + p["t"][torch.arange(x.shape[0], device=x.device)]


@body
def first_rows_of_table(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x * p["t"][: len(x)] + p["t"][: x.shape[0], :4].repeat(1, 2) + p["t"].narrow(0, 0, x.shape[0])


@body
def first_columns_of_table(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x + p["t"].T[:, : len(x)].T + p["t"][None, : x.size(0)].squeeze(0)


# === Losses with one value per slot ==========================================================================


@body
def cross_entropy(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.cross_entropy(x, i, p["b"].detach().abs(), reduction="none", ignore_index=3, label_smoothing=0.1)


@body
def cross_entropy_of_soft_labels(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.cross_entropy(x, x.softmax(-1), reduction="none") + F.nll_loss(x, i, p["b"].detach(), reduction="none")


@body
def elementwise_losses(x: Tensor, i: Tensor, p: Params) -> Tensor:
    y = x.flip(-1)
    a = F.mse_loss(x, y, reduction="none") + F.l1_loss(x, y, reduction="none") + F.huber_loss(x, y, reduction="none")
    return a + F.smooth_l1_loss(x, y, reduction="none") + F.kl_div(x, y.softmax(-1), reduction="none")


@body
def binary_cross_entropies(x: Tensor, i: Tensor, p: Params) -> Tensor:
    target = (x.detach() > 0).to(x.dtype)
    a = F.binary_cross_entropy(x.sigmoid(), target, reduction="none")
    return a + F.binary_cross_entropy_with_logits(x, target, pos_weight=p["b"].detach().abs(), reduction="none")


# === Views, splits and joins =================================================================================


@body
def rotate_half(x: Tensor, i: Tensor, p: Params) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


@body
def split_and_unbind(x: Tensor, i: Tensor, p: Params) -> Tensor:
    q, k, v = x.split([2, 2, 4], dim=-1)
    a, b = torch.unbind(v.view(-1, 2, 2), 1)
    first, *rest = x.T.unbind(0)
    return q * k + a - b + first[:, None] * rest[2].unsqueeze(-1) + torch.tensor_split(x, 4, 1)[1]


@body
def interleaved(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


@body
def stacked_first(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.stack([x, x * 2, -x], 0).sum(0) + torch.stack([x, x], 1).sum(1)


@body
def expanded(x: Tensor, i: Tensor, p: Params) -> Tensor:
    kv = x.view(-1, 2, 4)[:, :, None, :].expand(-1, 2, 3, 4).reshape(x.shape[0], 6, 4)
    mean = x.mean(-1, keepdim=True)
    return kv.flatten(1)[:, :8] + mean.expand(x.shape[0], 8) + mean.expand_as(x) + mean.repeat(1, 8)


@body
def outside_expanded(x: Tensor, i: Tensor, p: Params) -> Tensor:
    a = p["one"].expand(x.shape[0], -1) + p["b"].expand_as(x) + p["one"].repeat(len(x), 1)
    return torch.cat((x, a, p["b"].unsqueeze(0).expand(len(x), 8)), -1)


@body
def reshaped_to_what_is_left(x: Tensor, i: Tensor, p: Params) -> Tensor:
    heads = x.view(x.shape[0], 2, -1)
    return heads.transpose(1, 2).reshape(x.shape[0], -1) + x.T.reshape(2, -1, len(x))[0].repeat(2, 1).T


@body
def repeated_heads(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x.unflatten(-1, (2, 4)).repeat_interleave(2, dim=1).flatten(1, 2)


@body
def padded_features(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.pad(x, (1, 2)) + F.pad(x, (3, 0), value=1.5)


@body
def gated(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.glu(x, -1) + F.dropout(x, 0.5, training=False)[:, :4] + F.dropout(x, 0.0)[:, 4:]


@body
def partial_features(x: Tensor, i: Tensor, p: Params) -> Tensor:
    y = x.clone()
    y[:, :4] = x[:, 4:] * 2
    y[..., 6] = 1.5
    y[:, 5:8:2] = p["b"][5:8:2]
    return y


@body
def partial_features_of_a_window(x: Tensor, i: Tensor, p: Params) -> Tensor:
    y = torch.zeros_like(x)
    y[1:] = F.pad(x[:-1, :4], (0, 4))
    return y.narrow(1, 0, 6)


# === Rotary embeddings =======================================================================================


@body
def rope_half(x: Tensor, i: Tensor, p: Params) -> Tensor:
    t = torch.arange(x.shape[0], device=x.device).type_as(p["b"])
    angles = torch.outer(t, p["b"][:4])
    emb = torch.cat((angles, angles), dim=-1)
    a, b = x[..., :4], x[..., 4:]
    return x * emb.cos() + torch.cat((-b, a), -1) * emb.sin()


@body
def rope_cache(x: Tensor, i: Tensor, p: Params) -> Tensor:
    cos, sin = p["t"][: x.shape[0]].cos()[:, None, :4], p["t"][: x.shape[0]].sin()[:, None, :4]
    heads = x.view(x.shape[0], 2, 4)
    a, b = heads.chunk(2, -1)
    return (heads * cos + torch.cat((-b, a), -1) * sin).reshape(x.shape[0], 8)


@body
def rope_complex(x: Tensor, i: Tensor, p: Params) -> Tensor:
    angles = torch.arange(len(x)).to(x.dtype)[:, None] * p["b"][None, :4]
    turn = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(x.reshape(-1, 4, 2)) * turn).flatten(1)


@body
def complex_parts(x: Tensor, i: Tensor, p: Params) -> Tensor:
    z = torch.complex(x[:, :4], x[:, 4:])
    return z.real * z.imag + (z * z).abs() + z.angle()


@body
def sinusoidal(x: Tensor, i: Tensor, p: Params) -> Tensor:
    where = torch.arange(len(x), dtype=x.dtype).unsqueeze(1)
    rate = torch.exp(torch.arange(0, 8, 2, dtype=x.dtype) * (-math.log(100.0) / 8))
    pe = torch.zeros(len(x), 8, dtype=x.dtype)
    pe[:, 0::2] = torch.sin(where * rate)
    pe[:, 1::2] = torch.cos(where * rate)
    return x + pe


# === What every document sums up for itself ==================================================================


@body
def gram(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x @ torch.einsum("ld,le->de", x, x)


@body
def second_rows_of_table(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x * p["t"][1 : len(x) + 1]
