"""Every private import of torch in ``packpass/_compat``, used as packpass uses it: a new torch fails here first."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import operator
import re
import sys
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from packpass import _compat

# === Reports: counters and the structured trace ==============================================================


def test_dynamo_counters_are_counters_that_dynamo_fills() -> None:
    stats = _compat.dynamo_counters("stats")
    before = stats["unique_graphs"]
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert stats["unique_graphs"] == before + 1
    counter = _compat.dynamo_counters("packpass-test")
    counter["a"] += 1
    assert _compat.dynamo_counters("packpass-test") == {"a": 1}


def test_graph_breaks_are_counted_by_reason() -> None:
    breaks = _compat.dynamo_counters("graph_break")
    before = sum(breaks.values())

    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x + 1

    torch.compile(broken, backend="eager")(torch.ones(2))
    assert sum(breaks.values()) == before + 1


def test_a_function_that_is_given_up_keeps_what_is_compiled() -> None:
    """Without it, Dynamo would run the function eagerly for good."""
    ran: list[int] = []
    kept: list[bool] = []

    def broken(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            torch._dynamo.graph_break()
        return x + 1

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is broken.__code__:
            ran.append(frame.f_locals["n"])

    run = InstructionTranslator.run

    def keeping(self: Any) -> Any:
        try:
            return run(self)
        except Exception as error:
            kept.append(_compat.keep_compiled(error))
            raise

    torch._dynamo.reset()
    fn = torch.compile(broken, backend="eager")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InstructionTranslator, "run", keeping)
        sys.setprofile(note)
        try:
            for n in (0, 1, 0, 1):
                assert torch.equal(fn(torch.ones(2), n), torch.full((2,), 2.0))
        finally:
            sys.setprofile(None)
    assert (ran, kept) == ([1, 1], [True])
    assert not _compat.keep_compiled(ValueError("of another kind"))


def test_artifacts_reach_the_structured_trace() -> None:
    trace = logging.getLogger("torch.__trace")
    seen: list[Any] = []

    class Handler(logging.Handler):
        def emit(self, entry: logging.LogRecord) -> None:
            seen.append((getattr(entry, "metadata", {}), getattr(entry, "payload", None)))

    handler, level = Handler(), trace.level
    trace.addHandler(handler)
    trace.setLevel(logging.DEBUG)
    try:
        _compat.trace_artifact("packpass_report", lambda: json.dumps({"graphs": 1}))
    finally:
        trace.removeHandler(handler)
        trace.setLevel(level)
    found = [(m["artifact"], p) for m, p in seen if "artifact" in m]
    assert found == [({"name": "packpass_report", "encoding": "json"}, '{"graphs": 1}')]


# === Ops: Inductor's decomposition table, assertions ===========================================================


def test_a_decomposition_reaches_inductor_and_cannot_be_registered_twice() -> None:
    from torch._inductor.decomposition import decompositions

    with torch.library._scoped_library("packpass_compat", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        torch.library.register_fake("packpass_compat::twice", torch.empty_like, lib=library)
        op = torch.ops.packpass_compat.twice.default
        _compat.register_inductor_decomposition(op, lambda x: x + x)
        try:
            with pytest.raises(RuntimeError, match="already has an Inductor decomposition"):
                _compat.register_inductor_decomposition(op, lambda x: x + x)
            with _compat.empty_compile_caches(), _compat.generated_code() as modules:
                assert torch.compile(op)(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
            assert modules
            assert "packpass_compat.twice.default(" not in "".join(modules)
        finally:
            del decompositions[op]


def test_a_view_in_generated_code_guards_on_no_size() -> None:
    def pairs(sizes: list[Any]) -> tuple[list[Any], Any]:
        return [sizes[0] // 2, 2], lambda at: [at[0] * 2 + at[1]]

    def fake(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(x.shape[0] // 2, 2)

    with torch.library._scoped_library("packpass_compat", "DEF") as library:
        library.define("pairs(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
        library.impl("pairs", lambda x: x.view(-1, 2).clone(), "CompositeExplicitAutograd")
        torch.library.register_fake("packpass_compat::pairs", fake, lib=library)
        op = torch.ops.packpass_compat.pairs.default
        _compat.register_inductor_view(op, pairs)
        counter = CompileCounterWithBackend("inductor")
        compiled = torch.compile(lambda x: op(x * 2) + 1, backend=counter, dynamic=True)
        with _compat.empty_compile_caches(), _compat.generated_code() as modules:
            for size in (8, 4, 100):
                x = torch.arange(size + 0.0)
                assert torch.equal(compiled(x), x.view(-1, 2) * 2 + 1)
        assert "packpass_compat" not in "".join(modules)
        assert counter.frame_count == 1


def test_a_buffer_in_generated_code_is_computed_once() -> None:
    with torch.library._scoped_library("packpass_compat", "DEF") as library:
        library.define("kept(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
        library.impl("kept", torch.clone, "CompositeExplicitAutograd")
        torch.library.register_fake("packpass_compat::kept", torch.empty_like, lib=library)
        op = torch.ops.packpass_compat.kept.default
        _compat.register_inductor_buffer(op)
        compiled = torch.compile(lambda x, y: op(x.sin())[:, None] + y)
        with _compat.empty_compile_caches(), _compat.generated_code() as modules:
            x, y = torch.arange(4.0), torch.ones(4, 100)
            assert torch.allclose(compiled(x, y), x.sin()[:, None] + y)
        code = "".join(modules)
        assert "packpass_compat.kept.default(" not in code
        assert re.search(r"empty_strided_cpu\(\(4, ?\)", code), "inlined into what reads it"


def test_entries_are_read_by_numbers_that_nobody_looks_at() -> None:
    with torch.library._scoped_library("packpass_compat", "DEF") as library:
        library.define("entry(Tensor numbers, Tensor places) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
        library.impl("entry", lambda numbers, places: numbers[places], "CompositeExplicitAutograd")
        torch.library.register_fake(
            "packpass_compat::entry", lambda numbers, places: numbers.new_empty(places.shape), lib=library
        )
        op = torch.ops.packpass_compat.entry.default
        _compat.register_inductor_entries(op)
        compiled = torch.compile(lambda numbers, places: op(numbers * 2, places) + 1, dynamic=True)
        with _compat.empty_compile_caches(), _compat.generated_code() as modules:
            for count in (5, 3, 70):
                numbers, places = torch.arange(count) * 7, torch.arange(100) % count
                assert torch.equal(compiled(numbers, places), numbers[places] * 2 + 1)
            beyond = torch.tensor([-1, 200] * 50)
            assert torch.equal(compiled(torch.arange(5), beyond), torch.tensor([1, 9] * 50))
        code = "".join(modules)
        assert "packpass_compat.entry.default(" not in code
        assert "index out of bounds" not in code


def test_assert_async_raises_at_once_on_the_cpu_with_its_message() -> None:
    _compat.assert_async(torch.tensor(True), "never seen")
    with pytest.raises(RuntimeError, match="a packpass message"):
        _compat.assert_async(torch.tensor(False), "a packpass message")


def test_generated_cpp_is_sequential_exactly_if_it_opens_no_openmp_region() -> None:
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            torch._dynamo.reset()
            with _compat.empty_compile_caches(), _compat.generated_code() as modules:
                torch.compile(torch.sin)(torch.ones(200_000))
            assert modules
            assert _compat.generated_cpp_is_sequential() is ("omp parallel" not in "".join(modules))
            assert _compat.generated_cpp_is_sequential() is (count == 1)
        torch.set_num_threads(1)
        with torch._inductor.config.patch({"cpp.threads": 2}):
            assert not _compat.generated_cpp_is_sequential()
        with torch._inductor.config.patch({"cpp.dynamic_threads": True}):
            assert not _compat.generated_cpp_is_sequential()
    finally:
        torch.set_num_threads(threads)


# === Measuring: profiler events, generated code, caches =======================================================


def test_profiler_events_come_in_order_with_their_memory() -> None:
    def step() -> None:
        x = torch.empty(1024, dtype=torch.uint8)
        del x
        torch.ones(1).item()

    events = _compat.profile_cpu(step)
    assert [e.start_ns for e in events] == sorted(e.start_ns for e in events)
    assert "aten::_local_scalar_dense" in {e.name for e in events}
    changes = [e.allocated_bytes for e in events if e.name == "[memory]"]
    assert changes[:2] == [1024, -1024]


def test_generated_code_is_the_python_wrapper() -> None:
    from torch._inductor.graph import GraphLowering

    before = GraphLowering.save_output_code
    with _compat.empty_compile_caches(), _compat.generated_code() as sources:
        torch.compile(lambda x: x.sin() + 1, backend="inductor")(torch.rand(5))
    assert len(sources) == 1
    assert "def call(" in sources[0]
    assert GraphLowering.save_output_code is before


def test_empty_caches_are_empty_and_give_the_user_s_back() -> None:
    import os

    variable = "TORCHINDUCTOR_CACHE_DIR"
    before = os.environ.get(variable)
    with _compat.empty_compile_caches():
        inside = os.environ[variable]
        assert inside != before
        assert os.listdir(inside) == []
        assert not importlib.import_module("torch._functorch.config").enable_autograd_cache
    assert os.environ.get(variable) == before


def test_eager_random_numbers_make_inductor_agree_with_eager() -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) + x

    with _compat.eager_random_numbers():
        compiled = torch.compile(draw, backend="inductor")
        torch.manual_seed(3)
        found = compiled(torch.zeros(6))
    torch.manual_seed(3)
    assert torch.equal(found, draw(torch.zeros(6)))


# === Compiling beside the user's compiled code ===============================================================


def test_compile_wrappers_lead_to_what_they_wrap() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x

    module = torch.nn.Identity()
    assert torch.compile(function, backend="eager")._torchdynamo_orig_callable is function
    assert torch.compile(module, backend="eager")._orig_mod is module


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="torch.compile cannot isolate recompiles before"
)
def test_torch_compile_can_isolate_recompiles() -> None:
    assert "isolate_recompiles" in inspect.signature(torch.compile).parameters


# === Doctor ==================================================================================================


def test_registered_ops_lists_a_library_s_ops_once_each() -> None:
    importlib.import_module("packpass.ops")
    found = _compat.registered_ops("packpass")
    assert "packpass::packed_roll" in found
    assert len(found) == len(set(found))
    assert _compat.registered_ops("no_such_library") == []


def test_compile_cpp_gives_a_c_function() -> None:
    source = """
    #include <cstdint>
    extern "C" void add(const float* x, float* out, int64_t n, float*) {
      for (int64_t i = 0; i < n; ++i) out[i] = x[i] + 1.f;
    }
    """
    with _compat.empty_compile_caches():
        add = _compat.compile_cpp(source, "add", "ppip")
    assert add is not None
    x, out = torch.arange(100.0), torch.empty(100)
    assert add(x.data_ptr(), out.data_ptr(), 100, None) is None
    assert torch.equal(out, x + 1)


def test_compile_cpp_says_why_it_could_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "packpass.compat"):
        assert _compat.compile_cpp("this is no C++", "f", "p") is None
        assert _compat.compile_cpp('extern "C" void f() {}', "g", "p") is None
    assert [record.name for record in caplog.records] == ["packpass.compat"] * 2


# === Taking an operation apart ===============================================================================


def test_sizes_of_nobody_cannot_be_asked_for() -> None:
    with _compat.sizes_of_nobody() as (mode, size):
        length = size(0)
        x = torch.empty(length, 3)
        assert not _compat.assumptions(mode)
        with pytest.raises(Exception, match="data-dependent|symbolic") as caught:
            bool(x.shape[0] == 4)
        assert 4 in _compat.asked_of_data(caught.value).args
        assert _compat.asked_of_data(ValueError("of anything else")) is None
        torch._check(length >= 2)
        assert _compat.assumptions(mode)


def test_attempts_that_fail_are_not_logged() -> None:
    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = told.append  # type: ignore[method-assign]
    log = logging.getLogger("torch._subclasses.fake_tensor")

    def fail() -> None:
        with _compat.sizes_of_nobody() as (_, size):
            x = torch.empty(1, 3, size(0))
            with pytest.raises(Exception, match="data-dependent|symbolic"):
                torch.nn.functional.avg_pool1d(x, 2, 2, ceil_mode=True)

    log.addHandler(handler)
    try:
        with _compat.untold_attempts():
            with _compat.untold_attempts():
                fail()
            fail()
        assert not told
        fail()
        assert told, "nothing is logged any more: untold_attempts is not needed on this torch"
    finally:
        log.removeHandler(handler)


def test_sizes_of_anybody_say_what_was_asked() -> None:
    with _compat.sizes_of_anybody() as (mode, size):
        x = torch.empty(size(7), 3)
        assert not _compat.asked(mode)
        assert x.shape[0] > 5
        assert [str(condition) for condition in _compat.asked(mode)]


def test_aten_graph_records_what_a_function_runs() -> None:
    with _compat.sizes_of_nobody() as (_, size):
        x = torch.empty(size(0), 3)
        module, recorded = _compat.aten_graph(lambda a: a.exp().sum(0), [x], {})
        _, switched = _compat.aten_graph(torch.no_grad()(torch.exp), [x.requires_grad_()], {})
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    assert [node.target for node in calls] == [torch.ops.aten.exp.default, torch.ops.aten.sum.dim_IntList]
    assert calls[-1].meta["val"].shape == (3,)
    assert recorded
    assert not switched


def test_decomposition_of_gives_a_definition() -> None:
    definition = _compat.decomposition_of(torch.ops.aten.huber_loss.default)
    assert definition is not None
    x, y = torch.randn(5), torch.randn(5)
    torch.testing.assert_close(definition(x, y), torch.nn.functional.huber_loss(x, y))
    assert _compat.decomposition_of(torch.ops.aten._linalg_svd.default) is None


# === Process groups ==========================================================================================


def test_process_groups_by_name() -> None:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    try:
        name = dist.group.WORLD.group_name
        group = _compat.process_group_of(name)
        assert (group.size(), group.rank()) == (4, 1)
        assert isinstance(_compat.group_store(group), dist.Store)
        assert _compat.names_of_groups() == [name]
        sent = torch.arange(8).view(4, 2)
        assert _compat.all_to_all_of_equal_parts(sent, name, 4).shape == (4, 2)
        assert _compat.all_gather_of_equal_parts(sent, name, 4).shape == (16, 2)
        assert _compat.reduce_scatter_sum(sent, name, 4).shape == (1, 2)
        with pytest.raises(Exception, match="nobody"):
            _compat.process_group_of("nobody")
    finally:
        dist.destroy_process_group()
    assert _compat.names_of_groups() == []


# === Graphs after autograd ===================================================================================


def test_a_pass_after_autograd_runs_behind_the_user_s_and_is_part_of_the_cache_key() -> None:
    ran: list[str] = []
    theirs = _compat.custom_graph_pass(lambda graph: ran.append("theirs"), lambda: "theirs")
    ours = _compat.custom_graph_pass(lambda graph: ran.append("ours"), lambda: "ours")
    assert ours.uuid() == "ours"
    assert _compat.custom_graph_passes(None, ours) is ours
    options = {"post_grad_custom_pre_pass": _compat.custom_graph_passes(theirs, ours)}
    with _compat.empty_compile_caches():
        torch.compile(lambda x: x.sin() + 1, options=options)(torch.ones(3))
    assert ran == ["theirs", "ours"]


def test_fake_runs_can_leave_no_guard() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()
    x = FakeTensorMode(shape_env=env, static_shapes=False).from_tensor(torch.ones(6, 5))
    before = len(env.guards)
    with _compat.suppress_guards(_compat.fake_mode_of(x)):
        assert x.shape[0] == 6
    assert len(env.guards) == before
    with _compat.suppress_guards(None):
        pass


def test_values_inside_vmap_are_known() -> None:
    seen: list[bool] = []
    x = torch.ones(3)
    torch.vmap(lambda y: (seen.append(_compat.in_functorch(y)), y)[1])(x)
    assert seen == [True]
    assert not _compat.in_functorch(x)


def test_vmap_by_rules_alone() -> None:
    """An op that vmap runs sample by sample is refused inside, and run outside."""

    def ranges(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: torch.histc(row, 3, 0, 4))(x)

    with pytest.raises(RuntimeError), _compat.vmap_by_rules_alone():
        ranges(torch.ones(2, 3))
    with _compat.vmap_by_rules_alone():
        torch.vmap(torch.tril)(torch.ones(2, 3, 3))
    assert ranges(torch.ones(2, 3)).shape == (2, 3)


def test_with_any_batch() -> None:
    """The number of samples stays unknown, and a call that asks for it has no result."""
    made = _compat.with_any_batch(lambda rows: rows[0] @ rows[1], [torch.ones(3, 4), torch.ones(4, 2)], [True, False])
    assert isinstance(made.shape[0], torch.SymInt)
    assert made.shape[1:] == (3, 2)
    asks = [torch.ones(3)]
    assert _compat.with_any_batch(lambda rows: rows[0] if rows[0].shape[0] > 20 else None, asks, [True]) is None


def test_what_is_assumed_of_a_size() -> None:
    """Guards of a row that was found to be a multiple of 16."""
    found: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        values = [node.meta["example_value"] for node in gm.graph.nodes if node.op == "placeholder"]
        (x,) = (value for value in values if isinstance(value, torch.Tensor))
        found.append(_compat.assumed_of(x.shape[0]))
        return gm.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] % 16 == 0 else x

    torch._dynamo.reset()
    x = torch.randn(64)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    torch.compile(function, backend=backend, dynamic=True)(x)
    (assumed,) = found
    assert [n for n in range(2, 50) if assumed.holds(n)] == [16, 32, 48]
    assert assumed.divisors == {16}
    assert all(guard(32) for guard in assumed.guards)


def test_a_size_is_known_as_it_was_traced() -> None:
    """Of two sizes that torch has come to take for equal; a number is itself."""
    seen: list[object] = []

    def look(gm: fx.GraphModule, inputs: list[object]) -> object:
        added = next(n for n in gm.graph.nodes if n.op == "call_function" and n.target is operator.add)
        seen.extend(_compat.size_as_traced(n.meta["example_value"].shape[0]) for n in added.all_input_nodes)
        return gm.forward

    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        a, b = n.tolist()
        return x[:a] + x[:b]

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        torch.compile(f, backend=look)(torch.ones(9, 2), torch.tensor([3, 3]))
    assert len(set(seen)) == 2
    assert _compat.size_as_traced(4) == 4


def test_fake_values_need_not_be_remembered() -> None:
    mode = FakeTensorMode()
    with mode:
        x = torch.empty(3)
        for off in (mode, None):
            before = FakeTensorMode.cache_info()
            with _compat.without_fake_cache(off):
                assert (x + torch.empty(3)).shape == (3,)
            after = FakeTensorMode.cache_info()
            assert (before == after) == (off is mode)
    assert mode.cache_enabled


def test_bindings_name_the_sizes_that_a_call_made() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils import _pytree as pytree

    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True) as mode:
        known, size = mode.shape_env.create_unbacked_symint(), mode.shape_env.create_unbacked_symint()
        row = torch.empty(3, size, known, 2 * size)
    (bound,) = _compat.bindings_of(row, {known.node.expr}).items()
    assert bound[0] == size.node.expr
    assert str(pytree.key_get(row, bound[1])) == str(size)
    assert _compat.bindings_of(size, set()) == {size.node.expr: ()}
    assert _compat.bindings_of(2 * size, set()) == {}
    assert _compat.bindings_of(torch.ones(2), set()) == {}
