"""The measuring core: timing, profiling, counting generated code."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch

from packpass import _compat
from packpass.measuring.measure import interleave, is_collective, profile, same_randomness
from packpass.measuring.variants import Workload, count_code, examine, examine_compiled
from tests.surface.models import Scale, double


def test_ratios_are_to_the_first_way() -> None:
    def sleep(seconds: float) -> Any:
        return lambda: time.sleep(seconds)

    timings = interleave({"short": sleep(0.002), "long": sleep(0.008)}, min_rounds=5, max_rounds=5, budget=5)
    assert timings["short"].ratio == 1.0
    assert 2 < timings["long"].ratio < 6
    assert timings["long"].seconds == pytest.approx(0.008, rel=0.5)
    assert timings["long"].rounds == 5


def test_rounds_interleave() -> None:
    order: list[str] = []
    ways = {name: (lambda name=name: order.append(name)) for name in "abc"}
    interleave(ways, min_rounds=3, max_rounds=3, min_sample=0.0)
    rounds = order[-9:]
    assert [sorted(rounds[i : i + 3]) for i in (0, 3, 6)] == [["a", "b", "c"]] * 3
    assert len({tuple(rounds[i : i + 3]) for i in (0, 3, 6)}) == 3  # rotated


def test_prepared_arguments_are_new_for_every_call_and_not_timed() -> None:
    made: list[int] = []

    def prepare() -> int:
        time.sleep(0.01)
        made.append(len(made))
        return made[-1]

    used: list[int] = []
    timings = interleave({"only": used.append}, prepare={"only": prepare}, min_rounds=4, max_rounds=4)
    assert used == made
    assert len(set(used)) == len(used)
    assert timings["only"].seconds < 0.005


def test_a_budget_ends_the_rounds() -> None:
    started = time.perf_counter()
    interleave({"slow": lambda: time.sleep(0.05)}, min_rounds=2, max_rounds=1000, budget=0.3)
    assert time.perf_counter() - started < 2


def test_randomness_is_the_same_inside_and_untouched_outside() -> None:
    torch.manual_seed(5)
    random.seed(5)
    with same_randomness():
        inside = (torch.rand(1).item(), random.random())
    after = (torch.rand(1).item(), random.random())
    with same_randomness():
        assert (torch.rand(1).item(), random.random()) == inside
    torch.manual_seed(5)
    random.seed(5)
    assert (torch.rand(1).item(), random.random()) == after


def reads(x: torch.Tensor) -> float:
    found = x[0].item() + float(x[1])
    if x[2] > 0:
        found += len(x.tolist())
    return found + x[x > 1].sum().item() + torch.nonzero(x).shape[0]


def test_host_syncs_are_counted() -> None:
    x = torch.arange(4.0)
    # item, float, bool, the last item; x[mask], nonzero
    assert profile(lambda: reads(x)).host_syncs == 6
    assert profile(lambda: reads(x), eager=True).host_syncs == 7  # and tolist
    assert profile(lambda: x + 1).host_syncs == 0


def test_peak_memory_counts_what_lives_at_the_same_time() -> None:
    def step() -> None:
        a = torch.empty(1000, dtype=torch.uint8)
        b = torch.empty(3000, dtype=torch.uint8)
        del a, b
        torch.empty(2000, dtype=torch.uint8)

    found = profile(step)
    assert found.peak_bytes == 4000
    assert found.memory_source == "profiler"


def test_peak_memory_of_compiled_code() -> None:
    compiled = torch.compile(lambda x: (x.sort()[0] + 1).sort()[0], backend="inductor")
    x = torch.rand(10_000)
    compiled(x)
    assert 80_000 <= profile(lambda: compiled(x)).peak_bytes <= 400_000


def test_collectives_are_counted() -> None:
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        x = torch.ones(4)

        def step() -> None:
            dist.all_reduce(x)
            dist.barrier()
            functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))
            out = torch.empty(4)
            dist.all_to_all_single(out, x)

        assert profile(step).collectives == 3
    finally:
        dist.destroy_process_group()
    assert is_collective("c10d::allreduce_")
    assert not is_collective("c10d::barrier")


GENERATED = '''
# AOT ID: ['0_inference']
cpp_fused_add_0 = async_compile.cpp_pybinding(['const int64_t*'], r"""
    cpp_fused_other(x); aten.add(x); y.item()
""")
async_compile.triton('triton_poi_fused_0', \'\'\'
    triton_poi_fused_9(x)
\'\'\')
class Runner:
    def call(self, args):
        buf0 = empty_strided_cpu((4, ), (1, ), torch.int64)
        # Topologically Sorted Source Nodes: [add], Original ATen: [aten.add]
        cpp_fused_add_0(arg0_1, buf0)
        triton_poi_fused_0.run(arg0_1, buf1, 4, stream=stream0)
        buf2 = torch.ops.packpass.check_cu_seqlens.default(arg0_1, 4)
        extern_kernels.mm(buf0, buf1, out=buf2)
        u0 = arg1_1.item()
        return (buf0, )
'''


def test_calls_in_generated_code_are_counted() -> None:
    found = count_code([GENERATED])
    assert found.kernels == 2
    assert found.externs == ("torch.ops.packpass.check_cu_seqlens.default", "extern_kernels.mm")
    assert found.host_syncs == 1
    assert count_code([]).kernels == 0


def test_the_counts_fit_what_inductor_writes_today() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.mm(x.sin() + 1, y).cos()

    with _compat.empty_compile_caches(), _compat.generated_code() as sources:
        torch.compile(model, backend="inductor")(torch.rand(8, 8), torch.rand(8, 8))
    found = count_code(sources)
    assert len(sources) == 1
    assert (found.kernels, len(found.externs), found.host_syncs) == (2, 1, 0)


def test_generated_code_is_collected_inside_the_block_only() -> None:
    with _compat.generated_code() as sources:
        pass
    torch.compile(lambda x: x * 7, backend="inductor")(torch.rand(3))
    assert sources == []


def test_a_workload_runs_the_backward_where_something_needs_a_gradient() -> None:
    assert not Workload(double, (torch.ones(2),), {}).backward
    assert Workload(double, (torch.ones(2, requires_grad=True),), {}).backward
    assert Workload(Scale(), (torch.ones(2),), {}).backward
    with torch.no_grad():
        assert not Workload(Scale(), (torch.ones(2),), {}).backward
    seen = Workload(Scale(), (torch.ones(2, requires_grad=True),), {}).observe(Scale())
    assert set(seen["gradients"]) == {"[0][0]", "factor"}


def test_a_workload_leaves_arguments_and_buffers_alone() -> None:
    norm = torch.nn.BatchNorm1d(3)
    x = torch.rand(4, 3)
    before, values = {name: t.clone() for name, t in norm.state_dict().items()}, x.clone()
    work = Workload(norm, (x,), {})
    seen = work.observe(norm)
    assert not torch.equal(seen["state"]["running_mean"], before["running_mean"])  # seen to change
    assert all(torch.equal(t, before[name]) for name, t in norm.state_dict().items())  # and put back
    assert torch.equal(x, values)
    assert not work.changes_arguments(seen)


def test_a_workload_sees_changed_arguments() -> None:
    work = Workload(None, (torch.zeros(2),), {})
    assert work.changes_arguments(work.observe(lambda x: x.add_(1)))


def test_examine_finds_wrong_results_and_errors() -> None:
    work = Workload(double, (torch.ones(2),), {})
    expected = work.observe(double)
    reference = examine("eager", work, double)
    assert reference.ok
    row, _ = examine_compiled("wrong", work, lambda: lambda x: x * 3, expected, reference)
    assert not row.ok
    assert row.difference is not None
    assert row.difference.largest == 1.0

    def fail(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("first line\nsecond line")

    row, _ = examine_compiled("failing", work, lambda: fail, expected, reference)
    assert row.error == "ValueError: first line"
    assert not row.ok


def test_examine_looks_at_the_second_call_too() -> None:
    calls = []

    def wears_out(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * (2 if len(calls) == 1 else 5)

    work = Workload(double, (torch.ones(2),), {})
    row, _ = examine_compiled("once", work, lambda: wears_out, work.observe(double), examine("eager", work, double))
    assert not row.ok
