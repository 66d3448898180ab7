"""Independent all-to-alls of one process group, written one after the other, become one exchange.

Before: ``z, x, b = split(t, sections); z = a2a(z); x = a2a(x); b = a2a(b); cat([z, x, b])``, as FX

    tensor = all_to_all_single(z, [n, n], [n, n], '0'); wait = wait_tensor(tensor); out.copy_(wait); ...
    autograd_function_apply(fwd_body, bwd_body, x)      # or inside an autograd.Function
    cp_to_hp(b, cu_seqlens, ...)                        # or as an op of packpass

After: ``all_to_all_group([z, x, b], '0', 2)``, where the first one was; its backward is one exchange, too. Several
``cp_to_hp`` (or ``hp_to_cp``) of one ``cu_seqlens`` become one of the sections side by side.

Why it is safe: `straight_schedule`. Gradients are those of the graph as Dynamo captured it, as under stock
torch.compile: an all-to-all is linear, and its own adjoint for equal splits; an autograd.Function is replaced only if
its backward is proven to be that (`straight_function`). (An in-place ``dist.all_to_all_single`` lets no gradient
through in eager mode but does so once captured, under stock torch.compile as well. A tensor that is sent several times
adds up its gradients, maybe in another order.)

Does not handle: collectives that need each other's results, uneven splits, different groups, dtypes or devices, some
with gradients and some without, asynchronous ones, one output buffer for two, an input that is changed in place between
them, inputs that cannot be computed earlier (random numbers, host reads). Large ones are left alone where copies cost
more than a collective saves (`passes.exchange_cost`).
"""

from __future__ import annotations

from torch import fx

from packpass import markers
from packpass._compat import is_collective
from packpass._options import Options
from packpass.decisions.records import Refusal, Rewrite
from packpass.semantics.names import targets_of
from passes.context import PassContext
from passes.fuse_all_to_all.straight_find import Member, find
from passes.fuse_all_to_all.straight_function import find_function
from passes.fuse_all_to_all.straight_plan import Plan, refusal
from passes.fuse_all_to_all.straight_rewrite import fuse, reorder
from passes.refused import Refused

Results = list[Rewrite | Refusal]


def run(gm: fx.GraphModule, context: PassContext) -> Results:
    """Every graph, the outer ones first: a function that is an all-to-all is gone before its bodies are looked at."""
    results: Results = []
    if not any(map(is_collective, targets_of(gm))):
        return results
    done: set[fx.GraphModule] = set()
    while left := [m for m in gm.modules() if isinstance(m, fx.GraphModule) and m not in done]:
        done.add(left[0])
        results += _run(left[0], context.options)
    return results


def _run(gm: fx.GraphModule, options: Options) -> Results:
    members, results = _members(gm)
    if len(members) < 2:
        return results
    plan = Plan(gm.graph, members, options)
    results += plan.refusals
    if not plan.groups:
        return results

    # === Transform ===
    reorder(gm.graph, plan.schedule)
    replaced: dict[fx.Node, fx.Node] = {}
    for bucket in plan.groups:
        results.append(plan.report(bucket))
        fuse(gm, bucket, replaced)
    gm.graph.lint()
    gm.recompile()
    return results


def _members(gm: fx.GraphModule) -> tuple[list[Member], Results]:
    """What could share an exchange, in order, and what of the kind could not: only where there is more than one."""
    members: list[Member] = []
    refusals: Results = []
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target in markers.MARKERS:
            return [], []  # a captured loop, which another pass vectorises or which is replayed as it is
        try:
            found = find(node) or find_function(node)
        except Refused as refused:
            refusals.append(refusal(refused, node))
            continue
        if found is not None and found.group_size > 1:
            members.append(found)
    return members, refusals if len(members) + len(refusals) > 1 else []
