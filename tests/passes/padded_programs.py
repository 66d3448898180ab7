"""More padded models for `eliminate_padding`: ways of pooling, losses, in-place ops, gradients that stop, two masks.

All take ids and a mask, unless they say otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .padded_models import HEADS, VOCABULARY, WIDTH, Causal, Layer, Model, WrittenOutModel

# === Rewritten: what is computed of the tokens ==================================================================


class LongestToken(Model):
    """Maximum over the row, padding hidden by a low number."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.hidden(ids, mask).masked_fill(mask[..., None] == 0, -1e9).max(1)[0]


class LastByLength(Causal):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.hidden(ids, mask)[torch.arange(ids.shape[0]), mask.sum(1) - 1]


class LastByGather(Causal):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.hidden(ids, mask)
        last = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, x.shape[-1])
        return x.gather(1, last).squeeze(1)


class LastThatIsNoPadding(Causal):
    """As transformers finds it: also in left-padded rows."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        last = (torch.arange(ids.shape[1], dtype=torch.int32) * (ids != 1).int()).argmax(-1)
        return self.head(self.hidden(ids, mask))[torch.arange(ids.shape[0]), last]


class Accuracy(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hits = (self.head(self.hidden(ids, mask)).argmax(-1) == ids) & mask.bool()
        return self.head.bias.sum() + hits.sum() / mask.sum()


class Routed(Model):
    """The best two of some experts, chosen per token."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.hidden(ids, mask)
        weights, _ = torch.topk(self.head(x).softmax(-1), 2, dim=-1)
        return x * weights.sum(-1, keepdim=True)


class LossPerRow(Causal):
    """Without a reduction, ignored labels add 0."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits = self.head(self.hidden(ids, mask))
        each = F.cross_entropy(logits.transpose(1, 2), ids.masked_fill(mask == 0, -100), reduction="none")
        return each.sum(1)


class LossTokensFirst(Causal):
    """Logits and labels ``[S * B]``. Takes labels ``[B, S]``, or ``[S * B]`` as they are."""

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        logits = self.head(self.hidden(ids, mask)).transpose(0, 1).reshape(-1, VOCABULARY)
        if labels is None:
            labels = ids.masked_fill(mask == 0, -100).t().reshape(-1)
        return F.cross_entropy(logits, labels)


class LossOfTwoHeads(Causal):
    """Two labels per token."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Linear(WIDTH, 2 * VOCABULARY)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        labels = ids.masked_fill(mask == 0, -100)[..., None].expand(-1, -1, 2)
        return F.cross_entropy(self.heads(self.hidden(ids, mask)).view(-1, VOCABULARY), labels.reshape(-1))


class MaskComputedTwice(Model):
    """Each layer finds the padding for itself."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embedded(ids)
        for layer in self.layers:
            x = layer(x, (ids != 1)[:, None, None])
        return x.masked_fill((ids == 1)[..., None], 0.0).sum(1)


class QueriesMaskedToo(Model):
    def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
        pairs = mask[:, None, :, None] * mask[:, None, None, :]
        return pairs.bool() | torch.eye(mask.shape[1], dtype=torch.bool)


# === Rewritten: attention =======================================================================================


class InPlace(Layer):
    """Scores scaled and masked, tokens added up in place."""

    def forward(self, x: Tensor, mask: Any) -> Tensor:
        q, k, v = self.heads(self.norm(x))
        scores = q @ k.transpose(-1, -2)
        scores *= 0.5
        scores += mask
        y = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))
        y += x
        return y


class InPlaceModel(WrittenOutModel):
    layer: type[Layer] = InPlace  # type: ignore[assignment]


class LikeScores(Layer):
    """The mask takes its dtype from the scores, and hides weights once more."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2)
        weights = (scores + (1 - mask).type_as(scores) * -10000.0).softmax(-1)
        return weights.masked_fill(mask == 0, 0.0) @ v


class LikeScoresModel(Model):
    layer = LikeScores

    def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
        return mask[:, None, None, :]


class GroupedByBroadcast(Layer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q = q.unflatten(1, (2, 2))
        k, v = k[:, :2, None], v[:, :2, None]
        return ((q @ k.transpose(-1, -2) + mask[:, :, None]).softmax(-1) @ v).flatten(1, 2)


class GroupedByBroadcastModel(WrittenOutModel):
    layer: type[Layer] = GroupedByBroadcast  # type: ignore[assignment]


class UnpackedWithoutGradients(Model):
    """The same padded value, without gradients first."""

    def __init__(self) -> None:
        super().__init__()
        self.smooth = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.hidden(ids, mask).masked_fill(mask[..., None] == 0, 0.0).transpose(1, 2)
        with torch.no_grad():
            scale = self.smooth(x).sum((0, 2))
        return self.smooth(x).sum(2) * scale


class WrittenCopy(Model):
    """``reshape`` copies a transposed value, but not the packed form of it: what is written is seen in neither."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.hidden(ids, mask).transpose(0, 1) * 1.0
        y = F.selu(x.reshape(-1, WIDTH), True)
        z = x.reshape(-1, WIDTH)
        z += 1.0
        return (x + (y + z).view(x.shape)).transpose(0, 1)


# === Left alone =================================================================================================


class SumOfAll(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.hidden(ids, mask).sum(())


class ColumnForAllRows(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.hidden(ids, mask)[:, mask.sum(1) - 1]


class BestTokens(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.hidden(ids, mask).topk(2, dim=1)[0]


class FilledAndDoubled(Model):
    """Padding is no longer known."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.hidden(ids, mask).masked_fill(mask[..., None] == 0, -1e9)
        return (x * 2).amax(1)


class IntoOut(Model):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.hidden(ids, mask).detach()
        out = torch.zeros(*x.shape)
        torch.add(x, 1.0, out=out)
        return self.head(out * 2)


class WrittenView(Model):
    """What is written is seen in a view."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.hidden(ids, mask) * 1.0
        y = x.transpose(1, 2)
        x += 1.0
        return y


class DetachedWeights(WrittenOutModel):
    class layer(Layer):
        def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            return (q @ k.transpose(-1, -2) + mask).softmax(-1).detach() @ v


class WeightsWithoutGradients(WrittenOutModel):
    class layer(Layer):
        def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            with torch.no_grad():
                weights = (q @ k.transpose(-1, -2) + mask).softmax(-1)
            return weights @ v


class RoundedScores(WrittenOutModel):
    class layer(Layer):
        def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            return ((q @ k.transpose(-1, -2) * 50).int().float() / 50 + mask).softmax(-1) @ v


class CausalAfterSoftmax(WrittenOutModel):
    """Weights of what lies behind are dropped; the others do not add up to 1."""

    class layer(Layer):
        def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            n = q.shape[-2]
            return ((q @ k.transpose(-1, -2) + mask).softmax(-1) * torch.ones(n, n).tril()) @ v


class RandomMask(Model):
    """Keys are dropped at random."""

    def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
        kept = (torch.rand(ids.shape) < 2) & mask.bool()
        return kept[:, None, None, :]


class RowsForHeads(Model):
    """With as many rows as heads, queries of one row attend to keys of one head of all rows."""

    class layer(Layer):
        def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            assert q.shape[0] == HEADS
            k, v = k.transpose(0, 1), v.transpose(0, 1)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class LowerTriangleOfMask(Model):
    """With as many rows as tokens, the mask is cut as if it were one of queries and keys."""

    def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
        n = ids.shape[1]
        return mask.bool().tril()[None, None] | torch.eye(n, dtype=torch.bool)


class TwoReasons(Model):
    """Which keys are shown depends on the padding and on the tokens: the hidden ones are no padding."""

    def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
        return (mask.bool() & (ids != 7))[:, None, None] | torch.eye(mask.shape[1], dtype=torch.bool)


class TwoIds(Model):
    """Padding and another id are hidden."""

    def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
        return ((ids != 1) & (ids != 7))[:, None, None] | torch.eye(mask.shape[1], dtype=torch.bool)


class Broken(Model):
    """What comes behind a graph break may read padding."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.hidden(ids, mask)
        torch._dynamo.graph_break()
        return x.mean(1)


class RoundedQuotient(WrittenOutModel):
    class layer(Layer):
        def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            scores = torch.div(q @ k.transpose(-1, -2) * 50, 8, rounding_mode="floor")
            return (scores + mask).softmax(-1) @ v
