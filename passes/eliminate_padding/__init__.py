"""``eliminate_padding`` (opt-in): a padded model computes real tokens only.

    h = embed(ids)                                   # [B, S, D]
    for layer in layers:                             # q, k, v: [B, H, S, hd]
        a = scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        h = mlp(norm(h + out(a)))
    return head(h)

becomes

    ids = packpass.pack(ids)                         # [T]: the real tokens of all rows
    h = embed(ids)                                   # [T, D]
    for layer in layers:
        a = packpass.varlen_attention(q, k, v, cu_seqlens)
        h = mlp(norm(h + out(a)))                    # [T, D]
    return packpass.unpack(head(h))                  # [B, S, V], 0 at padding

Values at real tokens, and gradients, are those of the padded model; results at padding are 0 instead of what the model
makes of padding. That is safe because every op between pack and unpack is proven to work on each token alone (`tokens`:
`packpass.semantics` says what every call means), attention is proven to hide padding from every real token (`facts`,
`rules_attention`), and everything else is refused. Values that depend on positions are computed for the whole batch and
packed where they meet tokens, so that every token keeps its position in its row.

The pass does not change the graph that it is given: the packed graph stands beside it, and before each call the host
looks at the mask (the one host sync) and picks one of them: see `packpass.engine.unpadded`. A batch with (nearly) no
padding, or with labels at padding that a loss would count, runs as it is.

Does not handle: attention dropout; cross-attention; masks that the model is given ready-made for all queries and keys,
or that are cut out of a buffer; relative position biases; sliding windows; tokens that are cut, joined or reduced along
the row other than ``x[:, 0]``, ``x[:, -1]``, ``x[arange(B), last]``, ``x.gather(1, last)``,
``cross_entropy(x[:, :-1], labels[:, 1:])`` (`partners`), and what is made of values whose padding is masked with one
number; attention weights as a result; in-place ops whose target is used elsewhere; ``out=``; subgraphs (activation
checkpointing); tokens that go on behind a graph break.
"""

from __future__ import annotations

import logging

from torch import fx

from packpass.decisions.location import location_of_node
from packpass.decisions.packed_form import PackedForm
from packpass.decisions.records import Refusal, Rewrite
from packpass.semantics import op_of
from packpass.semantics.effects import effects_of
from packpass.semantics.overview import operations as known_operations
from passes.context import PassContext
from passes.eliminate_padding import rules_attention, rules_general, rules_losses, rules_multi_head  # noqa: F401
from passes.eliminate_padding.find import FUSED, Found, find, mask_of
from passes.eliminate_padding.machine import RULES, Machine
from passes.eliminate_padding.partners import with_partners
from passes.eliminate_padding.prologue import prologue
from passes.prune import erase_unused
from passes.refused import Refused

NAME = "eliminate_padding"
log = logging.getLogger("packpass.passes.eliminate_padding")


def run(gm: fx.GraphModule, context: PassContext) -> list[Rewrite | Refusal]:
    """Make the packed form of ``gm`` if there is one; the graph itself stays as it is."""
    whole = with_partners(gm)
    found = find(whole.graph)
    if found is None:
        return _hidden_attention(gm)
    site = next(iter(found.sites))
    try:
        rewrite, context.products.packed = _pack(whole, found, _breaks(gm))
        return [rewrite]
    except Refused as refused:
        node = refused.node or site
        return [Refusal(NAME, refused.code, refused.reason, location_of_node(node) or "<unknown>")]


def operations() -> frozenset[str]:
    """The operations that keep tokens apart, or have a rule of their own: the general rule takes every meaning."""
    return (frozenset(RULES) - {"*"}) | {op.name for op in known_operations()}


def _hidden_attention(gm: fx.GraphModule) -> list[Rewrite | Refusal]:
    """Attention with a mask in a subgraph."""
    for sub in gm.modules():
        for node in sub.graph.nodes if isinstance(sub, fx.GraphModule) and sub is not gm else ():
            if op_of(node) in FUSED and mask_of(node) is not None:
                where = location_of_node(node) or "<unknown>"
                reason = "attention inside a subgraph, such as activation checkpointing, is not packed"
                return [Refusal(NAME, "no-rule", reason, where)]
    return []


def _breaks(gm: fx.GraphModule) -> bool:
    """Does the model go on behind the graph?"""
    return bool(getattr(getattr(gm, "compile_subgraph_reason", None), "graph_break", False))


def _pack(gm: fx.GraphModule, found: Found, breaks: bool) -> tuple[Rewrite, PackedForm]:
    if not found.hidden:
        raise Refused("mask-not-padding", "an attention's mask is not known to hide padding, and only padding")
    seeds = found.seeds
    if not seeds:
        raise Refused("not-tokens", "no input [B, S, ...] holds the tokens whose padding is masked")
    machine = Machine(gm.graph, found.tile, found.facts, seeds)
    graph = machine.run()
    for site in found.sites:
        if machine.values[site].packed is None and machine.values[site].items is None:
            raise machine.lost or Refused("not-tokens", "a padded attention does not attend to packed tokens", site)
    if machine.unpacked and breaks:
        reason = "the model goes on behind a graph break, where padding would be 0 and not known to be ignored"
        raise Refused("graph-break", reason, machine.unpacked[0])
    first = prologue(gm, found.mask, machine.conditions)

    # === Transform ===
    erase_unused(graph, machine.must_stay)
    random = any(effects_of(node).random for node in gm.graph.nodes)
    for node in graph.nodes:
        node.meta.pop("example_value", None)
    packed = fx.GraphModule(gm, graph)
    packed.graph.lint()
    form = PackedForm(
        packed,
        first,
        found.inverted,
        tuple((c.kind, c.value, c.parts) for c in machine.conditions),
        tuple(machine.results),
        random,
    )
    attentions = len(machine.attentions)
    rewrite = Rewrite(
        NAME,
        location_of_node(machine.attentions[0]) or "<unknown>",
        f"{attentions} attention(s) over padded rows, mask {found.mask.name}",
        "varlen_attention over packed rows",
        {
            "numerics": True,
            "attentions": attentions,
            "mask": found.mask.name,
            "packed_inputs": sorted(node.name for node in seeds),
            "unpacked": len(machine.unpacked),
            "conditions": [c.kind for c in machine.conditions],
        },
    )
    return rewrite, form
