"""Loops that must be rewritten: they set, or add to, one slot of each row of a padded batch, by a number of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import Args, program


def _scored(x: Tensor, scores: Tensor, cu: Tensor) -> Args:
    return x, scores, cu.diff() % 9 + 1


def _masked(x: Tensor, scores: Tensor, cu: Tensor) -> Args:
    return x, scores, torch.arange(x.shape[1]) <= (cu.diff() % 9)[:, None]


def _prompted(x: Tensor, scores: Tensor, cu: Tensor) -> Args:
    x, scores, mask = _masked(x, scores, cu)
    return x, scores, torch.cat([torch.ones(len(mask), 3, dtype=torch.bool), mask], 1)


@program("f[N,9] f[N] cu", wrap=_scored, depends=False, tail=False)
def score_in_the_last_slot_of_a_row(x: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(scores)):
        out[i, lengths[i] - 1] = scores[i]
    return out + x


@program("f[N,9] f[N] cu", wrap=_scored, depends=False, tail=False)
def score_added_to_the_last_token(x: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    out = -0.1 * x
    for i in range(len(scores)):
        out[i, lengths[i] - 1] += scores[i]
    return out


@program("f[N,9] f[N] cu", wrap=_prompted, depends=False, tail=False)
def score_behind_a_prompt(x: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    out, prompt = torch.zeros_like(x), mask.shape[1] - x.shape[1]
    for i in range(len(scores)):
        n = mask[i, prompt:].sum()
        out[i, n - 1] = scores[i]
    return out + x


@program("f[N,9] f[N] cu", wrap=_prompted, depends=False, tail=False, graphs=3)
def score_behind_a_prompt_by_number(x: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    out, prompt = torch.zeros_like(x), mask.shape[1] - x.shape[1]
    for i in range(x.shape[0]):
        n = int(mask[i, prompt:].sum().item())
        out[i, n - 1] = scores[i]
    return out + x


@program("f[N,9] f[N] cu", wrap=_masked, depends=False, tail=False)
def score_by_rows_in_lists(x: Tensor, scores: Tensor, masks: Tensor) -> Tensor:
    rewards = []
    for score, row, mask in zip(scores, x, masks):
        reward = (row * -0.2).clone()
        last = mask.nonzero()[-1]
        reward[last] += score
        rewards.append(reward)
    return torch.stack(rewards)


@program("f[N,9] f[N] cu", wrap=_masked, depends=False, tail=False)
def score_at_the_last_true_one(x: Tensor, scores: Tensor, masks: Tensor) -> Tensor:
    out = x * 2
    for i in range(len(scores)):
        last = masks[i].nonzero()[-1].item()
        out[i, last] += scores[i]
    return out


@program("f[N,9] f[N] cu", wrap=_masked, depends=False, tail=False)
def score_at_the_first_false_one(x: Tensor, scores: Tensor, masks: Tensor) -> Tensor:
    out = x * 2
    for i in range(x.size(0)):
        end = (1 - masks[i].long()).argmax() - 1
        out[i, end] = scores[i]
    return out


@program("f[N,9] f[N] cu", wrap=_scored, depends=False, tail=False)
def row_read_after_its_slot(x: Tensor, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    out, sums = x * 2, []
    for i in range(len(scores)):
        row = out[i]
        row[lengths[i] - 1] = scores[i]
        sums.append(row.sum())
    return out, torch.stack(sums)


@program("f[N,9,3] f[N,3] cu", wrap=_scored, depends=False, tail=False)
def vector_in_one_slot(x: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    out = x * 2
    for i in range(len(scores)):
        out[i, lengths[i] - 1] = scores[i]
    return out


@program("f[N,3,9] f[N] cu", wrap=_scored, depends=False, tail=False)
def one_slot_of_all_channels(x: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    out = x * 2
    for i in range(len(scores)):
        out[i, :, lengths[i] - 1] = scores[i]
    return out


@program("f[N,9] f[N] cu", wrap=_masked, depends=False, tail=False, graphs=3)
def no_score_for_empty_rows(x: Tensor, scores: Tensor, masks: Tensor) -> Tensor:
    out = x * 2
    for i in range(x.size(0)):
        n = masks[i].sum()
        if n > 0:
            out[i, n - 1] = scores[i]
    return out
