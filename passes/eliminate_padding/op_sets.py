"""Names of ops by what they do to the tokens of a row."""

from __future__ import annotations

from typing import Any

import torch

from packpass.layout.rules import ELEMENTWISE

_MORE_THAN_POINTWISE = """
    masked_scatter isin l1_loss mse_loss smooth_l1_loss huber_loss binary_cross_entropy
    binary_cross_entropy_with_logits kl_div copy snapshot feature_alpha_dropout requires_grad_ silu_ relu_ dropout_
    empty_like
"""
POINTWISE = ELEMENTWISE - frozenset(_MORE_THAN_POINTWISE.split())
"""Every slot of the result is made of the same slot of the operands."""
RANDOM = frozenset({"rand_like", "randn_like", "dropout", "alpha_dropout"})
CASTS = frozenset({"to", "float", "double", "half", "bfloat16", "type", "type_as", "contiguous", "clone", "detach"})
HEAVY = frozenset(
    "linear matmul mm bmm addmm scaled_dot_product_attention multi_head_attention_forward".split()  # noqa: SIM905
)
"""What padding costs time in: their results are not kept for padding as well."""
PURE = (POINTWISE - RANDOM) | frozenset(
    """
    view reshape permute transpose unsqueeze squeeze expand getitem embedding layer_norm rms_norm index_select remainder
    cat stack arange ones zeros full new_ones packpass::pack packpass::unpack
    """.split()  # noqa: SIM905
)
"""What may be dropped where nothing uses it."""


def plain(name: str) -> str:
    """``add`` for ``add_``, as far as such ops are pointwise."""
    return name[:-1] if writes(name) and name[:-1] in POINTWISE else name


def is_random(name: str) -> bool:
    """May an op of this name draw random numbers?"""
    found: Any = getattr(torch.ops.aten, name, None) if name else None
    overloads = [getattr(found, o) for o in found.overloads()] if hasattr(found, "overloads") else []
    return any(torch.Tag.nondeterministic_seeded in op.tags for op in overloads)


def writes(name: str) -> bool:
    """Does an op of this name write into its first argument?"""
    if name == "setitem":
        return True
    return name.endswith("_") and not name.endswith("__") and name not in ("and_", "or_", "requires_grad_")
