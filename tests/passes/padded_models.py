"""Padded models for `eliminate_padding`: what it rewrites, and what it must leave alone. All take ids and a mask."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, LONGEST = 29, 16, 4, 24


def hidden_where(hide: Tensor, x: Tensor) -> Tensor:
    """An additive mask."""
    return torch.zeros(hide.shape, dtype=x.dtype).masked_fill(hide, torch.finfo(x.dtype).min)


class Layer(nn.Module):
    """Attention and MLP before normalisation; subclasses change ``attend``."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def heads(self, x: Tensor) -> list[Tensor]:
        b, s, _ = x.shape
        return [t.view(b, s, HEADS, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def forward(self, x: Tensor, mask: Any) -> Tensor:
        q, k, v = self.heads(self.norm(x))
        attended = self.attend(q, k, v, mask)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Embedding, learned positions, two layers, a head. ``mask`` is 1 at real tokens; subclasses change the parts."""

    layer: type[Layer] = Layer
    causal = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layers: Any = nn.ModuleList(self.layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def attention_mask(self, ids: Tensor, mask: Tensor) -> Any:
        shown = mask[:, None, None, :].bool()
        n = ids.shape[1]
        return shown & torch.ones(n, n, dtype=torch.bool).tril() if self.causal else shown

    def embedded(self, ids: Tensor) -> Tensor:
        return self.embed(ids) + self.positions(torch.arange(ids.shape[1]))

    def body(self, x: Tensor, mask: Any) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x

    def hidden(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.norm(self.body(self.embedded(ids), self.attention_mask(ids, mask)))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.hidden(ids, mask))


class Causal(Model):
    causal = True


# === Attention written in other ways ============================================================================


class WrittenOut(Layer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5
        weights = F.softmax(scores + mask, dim=-1, dtype=torch.float32).to(q.dtype)
        return F.dropout(weights, 0.1, False) @ v


class WrittenOutModel(Model):
    layer = WrittenOut

    def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
        return (1.0 - mask[:, None, None, :].to(self.head.weight.dtype)) * -10000.0


class WrittenOutCausal(WrittenOutModel):
    def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
        n = ids.shape[1]
        return super().attention_mask(ids, mask) + torch.full((n, n), float("-inf")).triu(1)


class Batched(Layer):
    """Heads merged with the batch, scores filled."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        b, h, s, d = q.shape
        q, k, v = (t.reshape(b * h, s, d) for t in (q, k, v))
        scores = torch.bmm(q * d**-0.5, k.transpose(1, 2)).view(b, h, s, s).masked_fill(~mask, float("-inf"))
        return torch.bmm(scores.view(b * h, s, s).softmax(-1), v).view(b, h, s, d)


class BatchedModel(Model):
    layer = Batched


class Grouped(Layer):
    """Two key heads for four query heads, written out as transformers does."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        b, _, s, d = k.shape
        k, v = (t[:, ::2][:, :, None].expand(b, 2, 2, s, d).reshape(b, 4, s, d) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class GroupedModel(Model):
    layer = Grouped


class GroupedInKernel(Layer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], attn_mask=mask, scale=0.3, enable_gqa=True)


class GroupedInKernelModel(Model):
    layer = GroupedInKernel


class GroupedInterleaved(Layer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        k, v = (torch.repeat_interleave(t[:, :2], 2, dim=1) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class GroupedInterleavedModel(Model):
    layer = GroupedInterleaved


class Rotary(Layer):
    """RoPE from tables of the whole row."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        shown, cos, sin = mask

        def turn(x: Tensor) -> Tensor:
            a, b = x[..., ::2], x[..., 1::2]
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(v.dtype)

        return F.scaled_dot_product_attention(turn(q), turn(k), v, attn_mask=shown)


class RotaryModel(Model):
    layer = Rotary
    causal = True

    def position_ids(self, mask: Tensor) -> Tensor:
        return torch.arange(mask.shape[1])[None]

    def attention_mask(self, ids: Tensor, mask: Tensor) -> Any:
        shown = super().attention_mask(ids, mask)
        angles = self.position_ids(mask)[:, None, :, None].float() * torch.tensor([1.0, 0.1])
        return shown, angles.cos(), angles.sin()


class RotaryPerRow(RotaryModel):
    """Positions that count real tokens, as for left-padded rows."""

    def position_ids(self, mask: Tensor) -> Tensor:
        return (mask.cumsum(1) - 1).clamp(min=0)


class MultiHead(Model):
    """torch.nn.MultiheadAttention and inverted masks."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def body(self, x: Tensor, mask: Tensor) -> Tensor:
        attended, _ = self.attention(x, x, x, key_padding_mask=mask, need_weights=False)
        return x + attended

    def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
        return mask == 0


# === What comes after the layers ================================================================================


class FirstToken(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return torch.tanh(self.head(self.hidden(ids, mask)[:, 0]))


class LastToken(Causal):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.hidden(ids, mask)[:, -1, :])


class MeanOfTokens(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.hidden(ids, mask) * mask.unsqueeze(-1)
        return self.head(x.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


class SmoothedTokens(Model):
    """A convolution along the row that sees zeros at padding."""

    def __init__(self) -> None:
        super().__init__()
        self.smooth = nn.Conv1d(WIDTH, VOCABULARY, 3, padding=1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.hidden(ids, mask).masked_fill(mask[..., None] == 0, 0.0)
        return self.smooth(x.transpose(1, 2)).transpose(1, 2)


class Loss(Causal):
    """Labels are the ids, ignored at padding."""

    def labels(self, ids: Tensor, mask: Tensor) -> Tensor:
        return ids.masked_fill(mask == 0, -100)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits = self.head(self.hidden(ids, mask)).float()
        labels = F.pad(self.labels(ids, mask), (0, 1), value=-100)[..., 1:].contiguous()
        return F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))


class LossOfClassesFirst(Loss):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits = self.head(self.hidden(ids, mask))
        return F.cross_entropy(logits.transpose(1, 2), self.labels(ids, mask), reduction="sum", label_smoothing=0.1)


class MaskedLoss(Loss):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits = self.head(self.hidden(ids, mask))
        each = F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none")
        return (each * mask.reshape(-1)).sum() / mask.sum()


class LossThatCountsPadding(Loss):
    def labels(self, ids: Tensor, mask: Tensor) -> Tensor:
        return ids


# === Left alone =================================================================================================


class MeanOverPadding(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.hidden(ids, mask).mean(1)


class Normalised(Model):
    def __init__(self) -> None:
        super().__init__()
        self.batch_norm = nn.BatchNorm1d(WIDTH)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.batch_norm(self.hidden(ids, mask).transpose(1, 2))


class Convolved(SmoothedTokens):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.smooth(self.hidden(ids, mask).transpose(1, 2)).transpose(1, 2)


class RunningSum(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.hidden(ids, mask).cumsum(1)


class Flattened(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.hidden(ids, mask)
        return F.linear(x.reshape(x.shape[0], -1), torch.ones(2, 9 * WIDTH))


class Rolled(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return torch.roll(self.hidden(ids, mask), 1, 1)


class Shortened(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.hidden(ids, mask)[:, 1:])


class SecondToken(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.hidden(ids, mask)[:, 1])


class Overall(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.hidden(ids, mask).square().mean()


class SquaredError(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.hidden(ids, mask)
        return F.mse_loss(x, torch.ones_like(x))


class Pairs(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.hidden(ids, mask)
        return x @ x.transpose(1, 2)


class Written(Model):
    def body(self, x: Tensor, mask: Any) -> Tensor:
        x = super().body(x, mask)
        x[:, 0] = 0.0
        return x


class DroppedWeights(Layer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=1e-9)


class DroppedWeightsModel(Model):
    layer = DroppedWeights


class UnmaskedLayer(Model):
    """The second layer attends to padding."""

    def body(self, x: Tensor, mask: Any) -> Tensor:
        return self.layers[1](self.layers[0](x, mask), None)


class SoftMask(WrittenOutModel):
    def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
        return super().attention_mask(ids, mask) * 1e-3


class Windowed(Model):
    def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
        at = torch.arange(ids.shape[1])
        return mask[:, None, None, :].bool() & ((at[:, None] - at).abs() < 3)


class SeesTheFuture(Model):
    """The wrong triangle."""

    def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
        n = ids.shape[1]
        return mask[:, None, None, :].bool() & torch.ones(n, n, dtype=torch.bool).triu()


class StrictlyBefore(WrittenOutModel):
    """No token sees itself."""

    def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
        n = ids.shape[1]
        return super().attention_mask(ids, mask) + torch.full((n, n), -1e9).triu(0)


class RelativeBias(WrittenOutModel):
    def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
        n = ids.shape[1]
        distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()
        return super().attention_mask(ids, mask) + self.positions(distance).mean(-1)


class CrossAttention(Model):
    """Queries are another input's; only the keys are masked."""

    def body(self, x: Tensor, mask: Any) -> Tensor:
        layer = self.layers[0]
        _, k, v = layer.heads(x)
        q = self.positions.weight[: x.shape[1]].view(1, -1, HEADS, WIDTH // HEADS).transpose(1, 2)
        return F.scaled_dot_product_attention(q.expand_as(k), k, v, attn_mask=mask).transpose(1, 2).reshape(x.shape)


class WeightsReturned(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        q, k, v = self.layers[0].heads(self.embedded(ids))
        scores = q @ k.transpose(-1, -2) + hidden_where(mask[:, None, None, :] == 0, q)
        weights = scores.softmax(-1)
        return weights @ v, weights


class Checkpointed(Model):
    def body(self, x: Tensor, mask: Any) -> Tensor:
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, mask, use_reentrant=False)
        return x
