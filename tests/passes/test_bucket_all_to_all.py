"""Joining all-to-all after autograd: which, where, at what price. Graphs of a fake process group of four; what the
joined graphs compute is compared on real ranks, in tests/dist/test_bucketing.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

import packpass
from packpass import _compat, _links
from packpass._links import Link
from packpass._options import Options
from packpass.decisions.records import Refusal, Rewrite, collecting
from packpass.engine import after_autograd, passes
from packpass.engine.backend import compile_inner
from packpass.reports.report import Report
from tests.dist.naive import AllToAll

packpass.backend  # noqa: B018  (loads what the passes need)
passes = passes.load()
from passes import bucket_all_to_all as b  # noqa: E402
from passes.bucket_all_to_all.find import A2A, WAIT  # noqa: E402
from passes.exchange_cost import Exchange, estimate, worth_joining  # noqa: E402

SIZE = 4
aten = torch.ops.aten
c10d = torch.ops._c10d_functional


@pytest.fixture(autouse=True)
def fake_group() -> Iterator[None]:
    torch._dynamo.reset()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=SIZE)
    yield
    torch._dynamo.reset()
    dist.destroy_process_group()


def a2a(x: Tensor, group: Any = None) -> Tensor:
    return funcol.all_to_all_single(x, None, None, group or world())


def world() -> Any:
    return dist.group.WORLD


def traced(program: Callable[..., Any], *inputs: Tensor, mode: Any = "fake") -> fx.GraphModule:
    return make_fx(program, tracing_mode=mode)(*inputs)


def run(program: Callable[..., Any], *inputs: Tensor, mode: Any = "fake", **options: Any) -> tuple[fx.Graph, list[Any]]:
    """The graph after the pass, checked, and what the pass says."""
    gm = traced(program, *inputs, mode=mode)
    before = [node.name for node in gm.graph.nodes]
    values = [n.meta["val"] for n in gm.graph.find_nodes(op="output")[0].all_input_nodes]
    results = b.bucket(gm.graph, Options(**options))
    gm.graph.lint()
    gm.recompile()
    if not [result for result in results if isinstance(result, Rewrite)]:
        assert [node.name for node in gm.graph.nodes] == before
    after = [n.meta["val"] for n in gm.graph.find_nodes(op="output")[0].all_input_nodes]
    for one, other in zip(values, after, strict=True):
        assert (str(one.shape), one.dtype) == (str(other.shape), other.dtype) or mode == "symbolic"
    assert all(len(n.users) == 1 and next(iter(n.users)).target is WAIT for n in sent(gm.graph) if n.target is A2A)
    return gm.graph, results


def sent(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in graph.nodes if n.op == "call_function" and n.target in (A2A, c10d.all_reduce.default)]


def codes(results: list[Any]) -> set[str]:
    return {result.code for result in results if isinstance(result, Refusal)}


def rows(*width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(2 * SIZE, *width, dtype=dtype)


# === Joined ======================================================================================================


def test_independent_ones() -> None:
    graph, (rewrite,) = run(lambda x, y: (a2a(x * 2) + 1, a2a(y), a2a(x + 1)), rows(3), rows(2, 5))
    (exchange,) = sent(graph)
    assert exchange.args[1:3] == ([1] * SIZE, [1] * SIZE)
    assert tuple(exchange.meta["val"].shape) == (SIZE, 2 * (3 + 10 + 3))
    assert rewrite.rule == "bucket_all_to_all"
    assert rewrite.before == "3 all_to_all_single (forward)"
    assert rewrite.details["bytes"] == 2 * SIZE * 16 * 4
    assert rewrite.details["count"] == 3
    assert rewrite.details["estimated_us_after"] < rewrite.details["estimated_us_before"]
    assert rewrite.details["latency_us"] == _links.TYPICAL["cpu"].latency_us
    for node in graph.nodes:
        assert "val" in node.meta or node.op == "output"


def test_verify_keeps_the_members_beside_what_is_joined() -> None:
    program = lambda x: (a2a(x) + 1, a2a(x * 2))  # noqa: E731
    graph, (rewrite,) = run(program, rows(3), verify=True)
    assert len(sent(graph)) == 3
    checks = [n for n in graph.nodes if n.target is torch.ops.packpass.must_equal.default]
    assert len(checks) == 2
    assert all(n.args[1].target is WAIT and n.args[2].startswith("bucket_all_to_all at ") for n in checks)
    assert all(set(n.args[1].users) == {n} for n in checks)
    assert rewrite.claims.collectives_saved == 1
    assert b.uuid(Options(verify=True)) != b.uuid(Options())


def test_each_gets_its_part_in_memory_of_its_own() -> None:
    graph, _ = run(lambda x, y: (a2a(x), a2a(y)), rows(3), rows(5))
    output = graph.find_nodes(op="output")[0]
    values = [node.meta["val"] for node in output.all_input_nodes]
    assert [tuple(v.shape) for v in values] == [(8, 3), (8, 5)]
    assert all(v.is_contiguous() for v in values)
    assert len({v.untyped_storage()._cdata for v in values}) == 2


def test_dtypes_and_devices_apart() -> None:
    graph, results = run(lambda x, y: (a2a(x), a2a(y), a2a(x + 1), a2a(y + 1)), rows(3), rows(3, dtype=torch.int64))
    assert [n.meta["val"].dtype for n in sent(graph)] == [torch.float32, torch.int64]
    assert len(results) == 2


def test_layers_of_independent_ones() -> None:
    """Two by two: each layer needs the one before it."""

    def program(x: Tensor) -> Tensor:
        for _ in range(3):
            x = a2a(x * 2) + a2a(x * 3)
        return x

    graph, results = run(program, rows(3))
    assert len(sent(graph)) == len(results) == 3


def test_crosswise_chains_make_no_cycle() -> None:
    """a1 -> b2 and b1 -> a2: joining (a1, a2) alone is legal, (b1, b2) too, both are not."""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a1, b1 = a2a(x), a2a(y)
        return a2a(a1.long()), a2a(b1.float())

    graph, results = run(program, rows(3), rows(3, dtype=torch.int64))
    assert len(sent(graph)) == 4
    assert not results


def test_readers_follow_their_results() -> None:
    """What reads the first result stands before the second collective in the program, and after it now."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        first = a2a(x).sin()
        second = first.cos() + 1
        return second + a2a(y.exp())

    graph, (rewrite,) = run(program, rows(3), rows(3))
    names = [str(n.target) for n in graph.nodes]
    assert names.index("aten.sin.default") > names.index("_c10d_functional.all_to_all_single.default")
    assert names.index("aten.exp.default") < names.index("_c10d_functional.all_to_all_single.default")
    assert rewrite.details["collectives_saved"] == 1


def test_members_that_another_bucket_has_moved() -> None:
    """Joining the first dtype delays one member of the second one behind the other."""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        w = a2a(y)
        a = a2a(x)
        c = a2a(w + a.long())  # level 1, moves behind the a2a of x + 1
        d = a2a(w + 1)  # level 1, does not move
        return c, d, a2a(x + 1), a2a(w * 2)

    graph, results = run(program, rows(3), rows(3, dtype=torch.int64))
    assert len(results) == 2
    assert len(sent(graph)) == 3


def test_collectives_of_the_same_group_may_stand_between() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        first = a2a(x)
        total = funcol.all_reduce(x, "sum", world())
        return first, total, a2a(x + 1)

    graph, _ = run(program, rows(3))
    assert [str(n.target).split(".")[1] for n in sent(graph)] == ["all_reduce", "all_to_all_single"]


@pytest.mark.parametrize("width", [(3,), (3, 5), ()])
def test_symbolic_sizes(width: tuple[int, ...]) -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        for one in (x, y):
            torch._check(one.shape[0] % SIZE == 0)
        return a2a(x), a2a(y)

    graph, (rewrite,) = run(program, rows(*width), rows(2), mode="symbolic")
    assert len(sent(graph)) == 1
    assert rewrite.details["sizes"].startswith("symbolic")


def test_symbolic_sizes_that_may_not_divide() -> None:
    """The collective raises where they do not; a reshape might not."""
    graph, results = run(lambda x: (a2a(x), a2a(x + 1)), rows(3), mode="symbolic")
    assert len(sent(graph)) == 2
    assert codes(results) == {"uneven-splits"}


def test_views_that_are_not_contiguous_and_empty_ones() -> None:
    graph, _ = run(lambda x: (a2a(x[:, ::2]), a2a(x.t()[:SIZE]), a2a(x[:0]), a2a(x[:, :0])), rows(8))
    assert len(sent(graph)) == 1


def test_explicit_equal_splits() -> None:
    splits = [2] * SIZE
    graph, _ = run(lambda x: [funcol.all_to_all_single(x * i, splits, splits, world()) for i in (1, 2)], rows(3))
    assert len(sent(graph)) == 1


# === Left alone ==================================================================================================


def test_one_alone_and_a_chain_are_no_pattern() -> None:
    assert not run(lambda x: a2a(x), rows(3))[1]
    assert not run(lambda x: a2a(a2a(a2a(x)) + 1), rows(3))[1]


def test_uneven_splits() -> None:
    send, receive = [1, 2, 3, 2], [2, 2, 2, 2]
    program = lambda x: [funcol.all_to_all_single(x * i, receive, send, world()) for i in (1, 2)]  # noqa: E731
    graph, results = run(program, rows(3))
    assert len(sent(graph)) == 2
    assert codes(results) == {"uneven-splits"}


def test_several_waits() -> None:
    name = world().group_name

    def program(x: Tensor) -> tuple[Tensor, ...]:
        outs = [c10d.all_to_all_single.default(x * i, [2] * SIZE, [2] * SIZE, name) for i in (1, 2)]
        return tuple(c10d.wait_tensor.default(out) for out in outs for _ in range(2))

    gm = traced(program, rows(3))
    assert codes(b.bucket(gm.graph, Options())) == {"several-waits"}
    assert len(sent(gm.graph)) == 2


def test_work_between_a_collective_and_its_wait() -> None:
    name = world().group_name

    def program(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        pending = [c10d.all_to_all_single.default(x * i, [2] * SIZE, [2] * SIZE, name) for i in (1, 2)]
        product = w @ w
        return product, *(c10d.wait_tensor.default(p) for p in pending)

    gm = traced(program, rows(3), torch.ones(3, 3))
    assert codes(b.bucket(gm.graph, Options())) == {"overlapped"}
    assert len(sent(gm.graph)) == 2


def test_pending_side_by_side_is_not_overlap() -> None:
    name = world().group_name

    def program(x: Tensor) -> tuple[Tensor, ...]:
        pending = [c10d.all_to_all_single.default(x * i, [2] * SIZE, [2] * SIZE, name) for i in (1, 2, 3)]
        return tuple(c10d.wait_tensor.default(p) for p in pending)

    assert len(sent(run(program, rows(3))[0])) == 1


@pytest.mark.parametrize("reduces", [False, True])
def test_other_groups_between(reduces: bool) -> None:
    """Their order among each other must stay, whatever the collective is."""
    other = dist.new_group([0, 1])

    def program(x: Tensor) -> tuple[Tensor, ...]:
        outs = []
        for i in (1, 2):
            outs.append(a2a(x * i))
            outs.append(funcol.all_reduce(x, "sum", other) if reduces else a2a(x + i, other))
        return tuple(outs)

    graph, results = run(program, rows(3))
    assert len(sent(graph)) == 4
    assert codes(results) == {"collective-order"}


def test_groups_one_after_the_other_are_joined_each() -> None:
    other = dist.new_group([0, 1])
    graph, results = run(lambda x: [a2a(x * i, g) for g in (world(), other) for i in (1, 2)], rows(3))
    assert [n.args[3] for n in sent(graph)] == [world().group_name, other.group_name]
    assert len(results) == 2


def test_writes_to_memory_between() -> None:
    """Moved behind the write, the first one would send what was written."""

    def program(x: Tensor) -> tuple[Tensor, ...]:
        first = a2a(x)
        x.copy_(first + 1)
        return first, a2a(x)

    # Functional but for the write of an input, as in Inductor's graphs.
    gm = traced(program, rows(3))
    assert [n for n in gm.graph.nodes if n.target is aten.copy_.default]

    def independent(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        first = a2a(x)
        x.copy_(y)
        return first, a2a(x)

    graph, results = run(independent, rows(3), rows(3))
    assert len(sent(graph)) == 2
    assert codes(results) == {"collective-order"}


def test_unknown_ops_between() -> None:
    """They may hold collectives of their own."""
    with torch.library._scoped_library("packpass_bucket", "DEF") as library:
        library.define("unknown(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
        library.impl("unknown", torch.clone, "CompositeExplicitAutograd")
        torch.library.register_fake("packpass_bucket::unknown", torch.empty_like, lib=library)
        op = torch.ops.packpass_bucket.unknown.default
        graph, results = run(lambda x: (a2a(x), op(x), a2a(x + 1)), rows(3))
    assert len(sent(graph)) == 2
    assert codes(results) == {"collective-order"}


def test_random_numbers_between() -> None:
    """Drawn by eager's generator, they come in the program's order."""
    graph, results = run(lambda x: (torch.bernoulli(a2a(x)), torch.bernoulli(x), a2a(x + 1)), rows(3))
    assert len(sent(graph)) == 2
    assert codes(results) == {"collective-order"}


def test_dtypes_without_a_known_copy() -> None:
    for dtype in (torch.complex64, torch.float8_e4m3fn):
        graph, results = run(lambda x: (a2a(x), a2a(x.clone())), rows(3).to(dtype))
        assert len(sent(graph)) == 2
        assert codes(results) == {"no-rule"}


def test_groups_of_one() -> None:
    alone = dist.new_group([1])
    graph, results = run(lambda x: (a2a(x, alone), a2a(x + 1, alone)), rows(3))
    assert len(sent(graph)) == 2
    assert not results


# === Cost ========================================================================================================

LINK = Link(latency_us=10, bandwidth_gbs=1, copy_gbs=2)


def test_the_model() -> None:
    cost = estimate([Exchange(8000, 0), Exchange(4000, 2), Exchange(4000, 1)], 4, LINK)
    assert cost.bytes == 16000
    assert cost.before_us == pytest.approx(30 + 12)
    assert cost.after_us == pytest.approx(10 + 12 + 4 + 2)
    assert cost.worthwhile
    assert not estimate([Exchange(8000, 2), Exchange(8000, 2)], 4, LINK).worthwhile
    assert not estimate([Exchange(0, 0)], 4, LINK).worthwhile
    assert worth_joining(Exchange(20_000, 1), LINK)
    assert not worth_joining(Exchange(20_001, 1), LINK)
    assert worth_joining(Exchange(10**9, 0), LINK)


def test_symbolic_sizes_decide_nothing() -> None:
    """Ranks that compile at different steps see different hints."""
    assert worth_joining(Exchange(10**9, 2, exact=False), LINK)
    assert estimate([Exchange(10**9, 2, exact=False)] * 2, 4, LINK).worthwhile


def test_large_ones_that_are_in_memory_are_left_alone() -> None:
    large = torch.empty(SIZE, 2**20, device="meta")
    _, results = run(lambda x, y, z: (a2a(x), a2a(y), a2a(z), a2a(z * 2)), large, large, rows(3))
    (refusal,) = [r for r in results if isinstance(r, Refusal)]
    assert refusal.code == "not-worthwhile"
    assert "2 all-to-all of 33554432 bytes" in refusal.reason
    (rewrite,) = [r for r in results if isinstance(r, Rewrite)]
    assert rewrite.details["count"] == 2


def test_large_ones_that_a_kernel_makes_and_reads_are_joined() -> None:
    large = torch.empty(SIZE, 2**20, device="meta")
    graph, _ = run(lambda x, y: (a2a(x * 2) + 1, a2a(y * 2) + 1), large, large)
    assert len(sent(graph)) == 1


def test_options_override() -> None:
    program = lambda x, y: (a2a(x), a2a(y))  # noqa: E731
    small = rows(3)
    assert codes(run(program, small, small, collective_latency_us=1e-6)[1]) == {"not-worthwhile"}
    assert codes(run(program, small, small, copy_bandwidth_gbs=1e-6)[1]) == {"not-worthwhile"}
    assert len(sent(run(program, small, small, copy_bandwidth_gbs=1e-6, collective_latency_us=1e9)[0])) == 1


def test_bucket_bytes() -> None:
    each = rows(3).nbytes
    program = lambda x: [a2a(x * i) for i in range(6)]  # noqa: E731
    assert len(sent(run(program, rows(3), bucket_bytes=2 * each)[0])) == 3
    assert len(sent(run(program, rows(3), bucket_bytes=4 * each + 1)[0])) == 2
    assert len(sent(run(program, rows(3), bucket_bytes=each - 1)[0])) == 6


# === Hook ========================================================================================================


def dynamo_graph(program: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    found: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, example: Any) -> Any:
        found.append(gm)
        return gm.forward

    torch.compile(program, backend=keep, fullgraph=True)(*inputs)
    return found[0]


def test_added_only_where_it_can_matter() -> None:
    plain = dynamo_graph(lambda x: torch.sin(x).sum(), rows(3))
    pair = dynamo_graph(lambda x: (a2a(x), a2a(x + 1)), rows(3))
    assert after_autograd.inductor_options(plain, [], Options(), {"max_autotune": True}) == {"max_autotune": True}
    assert after_autograd.inductor_options(pair, [], Options(disable=("bucket_all_to_all",)), {}) == {}
    assert after_autograd.inductor_options(pair, [], Options(bucket_bytes=0), {}) == {}
    assert list(after_autograd.inductor_options(pair, [], Options(), {})) == [after_autograd.HOOK]
    with collecting(Report()):
        assert after_autograd.inductor_options(pair, [], Options(), {})["fx_graph_cache"] is False


def test_inside_an_autograd_function() -> None:
    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return a2a(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return a2a(grad)

    graph = dynamo_graph(lambda x: Exchange.apply(x), rows(3).requires_grad_())
    assert b.could_matter(graph, [])


def test_no_process_group() -> None:
    graph = dynamo_graph(lambda x: (a2a(x), a2a(x + 1)), rows(3))
    dist.destroy_process_group()
    assert not b.could_matter(graph, [])
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=SIZE)


def test_uuid_follows_everything_that_decides() -> None:
    one = b.uuid(Options())
    assert b.uuid(Options(symbolic_loops=False)) == one
    others = [
        b.uuid(Options(verify=True)),
        b.uuid(Options(bucket_bytes=1)),
        b.uuid(Options(collective_latency_us=1)),
        b.uuid(Options(collective_bandwidth_gbs=1)),
        b.uuid(Options(copy_bandwidth_gbs=1)),
    ]
    group = world()
    _links._measured[group] = LINK
    others.append(b.uuid(Options()))
    assert len({one, *others}) == 7
    assert _links.link_of(group, "cpu", Options(copy_bandwidth_gbs=7)) == Link(10, 1, 7)
    del _links._measured[group]
    assert b.uuid(Options()) == one


class Theirs(CustomGraphPass):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, graph: fx.Graph) -> None:
        self.seen.append(len(sent(graph)))

    def uuid(self) -> str:
        return "theirs"


def pair_of(x: Tensor) -> tuple[Tensor, Tensor]:
    return a2a(x) * 2, a2a(x + 1) * 2


def joined_code(options: dict[str, Any], inputs: Tensor) -> str:
    """What Inductor makes of `pair_of`."""
    torch._dynamo.reset()
    with _compat.empty_compile_caches(), _compat.generated_code() as code:
        torch.compile(pair_of, backend=packpass.backend, fullgraph=True, options=options)(inputs)
    return "".join(code)


CALL = "torch.ops._c10d_functional.all_to_all_single.default("


@pytest.mark.parametrize("where", ["options", "config"])
def test_a_pass_of_the_user_s_runs_first(where: str) -> None:
    theirs = Theirs()
    options: dict[str, Any] = {"packpass.disable": ["fuse_all_to_all"]}
    if where == "options":
        options[after_autograd.HOOK] = theirs
    with torch._inductor.config.patch({after_autograd.HOOK: theirs if where == "config" else None}):
        assert joined_code(options, rows(3)).count(CALL) == 1
    assert theirs.seen == [2]


def test_reports_count_what_is_joined_even_where_a_cache_has_the_graph() -> None:
    torch._dynamo.reset()
    options: dict[str, Any] = {"packpass.disable": ["fuse_all_to_all"]}
    with torch._inductor.utils.fresh_cache():
        torch.compile(pair_of, backend=packpass.backend, options=dict(options))(rows(3))
        hits = torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"]
        torch._dynamo.reset()
        torch.compile(pair_of, backend=packpass.backend, options=dict(options))(rows(3))
        # Without a report, compiled graphs come out of the cache: the pass has a stable uuid.
        assert torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"] == hits + 1
        for _ in range(2):
            report = packpass.explain(pair_of, options=dict(options))(rows(3))
            assert (report.collectives_before, report.collectives_after) == (2, 1)
            assert [r.rule for r in report.rewrites] == ["bucket_all_to_all"]
        off = {"packpass.disable": ["fuse_all_to_all", "bucket_all_to_all"]}
        report = packpass.explain(pair_of, options=off)(rows(3))
        assert (report.collectives_before, report.collectives_after) == (2, 2)


def test_the_backward_graph_compiled_later_is_joined_too() -> None:
    """Outside any config context: the pass travels with the options."""
    group = world()

    def program(x: Tensor) -> Tensor:
        send = [(x * i).view(x.shape[0], SIZE, -1).transpose(0, 1).contiguous() for i in (2, 3)]
        return torch.cat([AllToAll.apply(one, group).flatten(0, 1) for one in send], -1)

    x = rows(2 * SIZE).requires_grad_()
    options: dict[str, Any] = {"packpass.disable": ["fuse_all_to_all"]}
    with _compat.empty_compile_caches(), _compat.generated_code() as code:
        out = torch.compile(program, backend=packpass.backend, fullgraph=True, options=options)(x)
        assert len(code) == 1  # with static sizes, AOTAutograd waits for the first backward
        out.sum().backward()
    assert [module.count(CALL) for module in code] == [1, 1]


def test_other_inner_backends_take_no_pass() -> None:
    gm = dynamo_graph(pair_of, rows(3))
    assert compile_inner(gm, [], Options(inner_backend="eager"), None, {}) == gm.forward
