"""The ops through torch.compile on the CPU: equal to the loops, one kernel per direction, one compile for all sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx

from packpass.ops import _packed_roll_inductor, _window_mask, packed_roll, position_ids, segment_ids
from tests.ops import reference
from tests.threads import threads

OPS = torch.ops.packpass
CHECK_MESSAGE = "packpass: cu_seqlens must be nondecreasing and lie between 0 and the number of slots"


@pytest.fixture(autouse=True)
def fresh_dynamo_and_one_thread() -> Iterator[None]:
    """In one thread the check is part of the generated kernel; ``test_several_threads`` has the other case."""
    torch._dynamo.reset()
    with threads(1):
        yield
    torch._dynamo.reset()


def body(source: str) -> str:
    """What the generated module runs per call."""
    return source.split("def call(")[1]


def cpp_calls(source: str) -> int:
    return len(re.findall(r"^\s+cpp_fused\w*\(", body(source), re.MULTILINE))


def packed_calls(source: str) -> list[str]:
    return re.findall(r"torch\.ops\.packpass\.(\w+)", body(source))


ROLLS = {
    "tokens": (torch.int64, (1, 200), 1, -1, 0),
    "tokens right, fill": (torch.int32, (200,), 0, 2, -100),
    "tokens around": (torch.int64, (2, 200), 1, -3, None),
    "hidden": (torch.bfloat16, (200, 16), 0, -1, 0),
    "hidden right, around": (torch.float32, (2, 200, 8), 1, 1, None),
    "trailing size 1": (torch.float32, (2, 200, 1), 1, -1, 0),
    "half": (torch.float16, (200,), 0, -1, 0),
    "long shift": (torch.float64, (200,), 0, -9, 0),
    "mask": (torch.bool, (200,), 0, -1, True),
    "complex": (torch.complex64, (200,), 0, 1, 2),
    "float8": (torch.float8_e4m3fn, (200,), 0, -1, 1),
    "short row": (torch.float32, (17,), 0, -1, 0),
    "shift of the row": (torch.float32, (17,), 0, -17, 0),
    "none": (torch.float32, (17,), 0, 0, 0),
}


@pytest.mark.parametrize("case", ROLLS)
def test_packed_roll(case: str) -> None:
    dtype, shape, dim, shift, fill = ROLLS[case]
    x = reference.sample(dtype, *shape)
    compiled = torch.compile(lambda x, cu: packed_roll(x, cu, shift, dim, fill), fullgraph=True)
    total = shape[dim]
    layouts = [
        reference.documents(total, 6, head=3, tail=2),
        reference.documents(total, 6),
        torch.full((7,), total // 2, dtype=torch.int32),
        torch.tensor([0, 0, 1, 2, 5, total, total], dtype=torch.int32),
    ]
    for cu in layouts:
        result = compiled(x, cu)
        assert result.is_contiguous()
        assert reference.same(result, packed_roll(x, cu, shift, dim, fill))
    if not (dtype.is_floating_point and dtype.itemsize == 1):
        assert torch.equal(result, reference.roll(x, cu, shift, dim, fill))


def test_packed_roll_padded() -> None:
    cu, padded = reference.padded_documents(200, 9)
    x = reference.sample(torch.float32, 200, 4)
    compiled = torch.compile(lambda x: packed_roll(x, cu, -1, 0, 5, padded), fullgraph=True)
    assert torch.equal(compiled(x), reference.roll(x, cu, -1, 0, 5, padded))


def test_boundary_ops() -> None:
    def function(x: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
        total = x.shape[0]
        return (
            position_ids(cu, total),
            segment_ids(cu, total),
            OPS.window_mask(cu, total, 1, 2),
            OPS.packed_flip(x, cu, 0),
        )

    x, cu = reference.sample(torch.float32, 60), reference.documents(60, 5, head=4, tail=3)
    results = torch.compile(function, fullgraph=True)(x, cu)
    assert torch.equal(results[0], reference.position_ids(cu, 60))
    assert torch.equal(results[1], reference.segment_ids(cu, 60))
    assert torch.equal(results[2], reference.window_mask(cu, 60, 1, 2))
    assert torch.equal(results[3], reference.flip(x, cu, 0))


@pytest.mark.parametrize(("front", "back"), [(0, 1), (3, 2)])
def test_window_mask_is_part_of_the_kernel(front: int, back: int) -> None:
    def function(x: Tensor, cu: Tensor) -> Tensor:
        mask = OPS.window_mask.default(cu, x.shape[0], front, back)
        return torch.where(mask, OPS.packed_roll.default(x, cu, -1, 0, 0), x)

    x, cu = reference.sample(torch.int64, 300), reference.documents(300, 7, head=5, tail=4)
    result, (source,) = run_and_get_code(torch.compile(function, fullgraph=True), x, cu)
    mask = reference.window_mask(cu, 300, front, back)
    assert torch.equal(result, torch.where(mask, reference.roll(x, cu), x))
    assert cpp_calls(source) == 1
    assert packed_calls(source) == []


def many_rolls(ids: Tensor, labels: Tensor, positions: Tensor, mask: Tensor, cu: Tensor) -> list[Tensor]:
    """Multi-token prediction as the passes write it: three depths of four fields, with the sums of the mask."""
    OPS.check_cu_seqlens.default(cu, ids.shape[1])
    results = []
    for depth in (1, 2, 3):
        rolled = OPS.packed_roll.default(mask, cu, -depth, 1, 0)
        results += [OPS.packed_roll.default(field, cu, -depth, 1, 0) for field in (ids, labels, positions)]
        results += [rolled, rolled.sum()]
    return results


def test_many_rolls_are_one_kernel_with_one_check() -> None:
    fields = [reference.sample(torch.int64, 1, 300) + i for i in range(3)]
    mask, cu = torch.ones(1, 300), reference.documents(300, 8, head=2, tail=9)
    results, (source,) = run_and_get_code(torch.compile(many_rolls, fullgraph=True), *fields, mask, cu)
    for result, expected in zip(results, many_rolls(*fields, mask, cu), strict=True):
        assert torch.equal(result, expected)
    assert cpp_calls(source) == 1
    assert packed_calls(source) == []
    assert source.count("throw std::runtime_error") == 1
    assert ".item()" not in source


@pytest.mark.parametrize("shape", [(400,), (300, 16)], ids=["row", "hidden"])
def test_one_kernel_forward_one_backward(shape: tuple[int, ...]) -> None:
    def loss(x: Tensor, cu: Tensor) -> Tensor:
        return (packed_roll(x * 2, cu, -1, 0) + 1).square().sum()

    x = torch.randn(shape, requires_grad=True)
    cu = reference.documents(shape[0], 7, head=3, tail=4)
    expected = torch.autograd.grad(loss(x, cu), x)[0]

    def step() -> Tensor:
        return torch.autograd.grad(compiled(x, cu), x)[0]

    compiled = torch.compile(loss, fullgraph=True)
    grad, sources = run_and_get_code(step)
    assert torch.allclose(grad, expected)
    assert len(sources) == 2
    for source in sources:
        assert cpp_calls(source) == 1
        assert packed_calls(source) == []
        assert ".item()" not in source
        assert "atomic_add" not in source


def test_one_compile_for_all_sizes() -> None:
    """T and N change, from the first call on, with backward; sizes 0 and 1 are Dynamo's own special cases."""
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(lambda x, cu: packed_roll(x, cu), backend=counter, fullgraph=True, dynamic=True)
    for total, count in [(300, 7), (131, 2), (1000, 50), (4096, 512), (193, 1), (257, 3), (2048, 100)]:
        cu = reference.documents(total, count, head=3, tail=5)
        x = torch.randn(2, total, requires_grad=True)
        result = compiled(x, cu)
        assert torch.equal(result, reference.roll(x, cu))
        weights = torch.randn_like(result)
        result.backward(weights)
        assert torch.equal(x.grad, reference.roll(weights, cu, 1))
    assert counter.frame_count == 1


def test_one_compile_for_all_sizes_of_hidden_states() -> None:
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(lambda x, cu: packed_roll(x, cu, 2, 0), backend=counter, fullgraph=True, dynamic=True)
    for total, count in [(300, 7), (3, 1), (131, 2), (17, 20), (1000, 1)]:
        cu = reference.documents(total, count, head=1, tail=1)
        x = torch.randn(total, 5)
        assert torch.equal(compiled(x, cu), reference.roll(x, cu, 2, 0))
    assert counter.frame_count == 1


@pytest.mark.parametrize("first", [300, 20])
@pytest.mark.parametrize("shift", [-1, 2])
def test_one_compile_for_short_and_long_rows(first: int, shift: int) -> None:
    """Blocks are chosen by the first length; rows of no, one or many blocks run the same code, forward and backward."""
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(lambda x, cu: packed_roll(x, cu, shift), backend=counter, fullgraph=True, dynamic=True)
    for total, count in [(first, 7), (100, 9), (20, 3), (66, 4), (500, 2), (131, 3), (5, 2)]:
        cu = reference.documents(total, count)
        x = torch.randn(total, requires_grad=True)
        result = compiled(x, cu)
        assert torch.equal(result, reference.roll(x, cu, shift))
        weights = torch.randn(total)
        result.backward(weights)
        assert torch.equal(x.grad, reference.roll(weights, cu, -shift))
    assert counter.frame_count == 1


def test_sizes_known_only_at_run_time() -> None:
    def function(x: Tensor, cu: Tensor, used: Tensor) -> tuple[Tensor, ...]:
        total = used.item()
        torch._check(total >= 0)
        torch._check(total <= x.shape[0])
        part = x[:total]
        return packed_roll(part, cu), packed_roll(part, cu, 2, fill=None), position_ids(cu, total)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(function, fullgraph=True, dynamic=True)
        for total in (30, 1, 0, 49):
            x, cu = torch.arange(50), reference.documents(total, 3)
            left, around, positions = compiled(x, cu, torch.tensor(total))
            assert torch.equal(left, reference.roll(x[:total], cu))
            assert torch.equal(around, reference.roll(x[:total], cu, 2, fill=None))
            assert torch.equal(positions, reference.position_ids(cu, total))


BAD = [[0, 9, 5], [-1, 4, 8], [0, 4, 401]]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_wrong_boundaries_raise(backend: str) -> None:
    """Also where nothing uses the result of the check, and the graph is trained."""
    compiled = torch.compile(lambda x, cu: packed_roll(x, cu).sum(), backend=backend, fullgraph=True)
    x = torch.randn(400, requires_grad=True)
    compiled(x, torch.tensor([0, 4, 400])).backward()
    for cu in BAD:
        with pytest.raises((RuntimeError, ValueError), match="packpass: .*cu_seqlens"):
            compiled(x, torch.tensor(cu))


def test_check_alone_is_not_dead_code() -> None:
    def function(x: Tensor, cu: Tensor) -> Tensor:
        OPS.check_cu_seqlens.default(cu, 400)
        return x + 1

    for backend in ("eager", "aot_eager", "inductor"):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        compiled(torch.zeros(3), torch.tensor([0, 4, 400]))
        for cu in BAD:
            with pytest.raises((RuntimeError, ValueError), match="packpass: .*cu_seqlens"):
                compiled(torch.zeros(3), torch.tensor(cu))


def test_wrong_padded_boundaries_raise() -> None:
    compiled = torch.compile(lambda x, cu, padded: packed_roll(x, cu, cu_seqlens_padded=padded), fullgraph=True)
    x = torch.zeros(10)
    compiled(x, torch.tensor([0, 3, 5]), torch.tensor([0, 4, 8]))
    with pytest.raises(RuntimeError, match="packpass: cu_seqlens_padded must be .*room for its tokens"):
        compiled(x, torch.tensor([0, 3, 8]), torch.tensor([0, 4, 8]))


def test_several_threads() -> None:
    """An assertion inside an OpenMP region would abort the process: there the check is a call, and names the entry."""
    with threads(2):
        compiled = torch.compile(lambda x, cu: (x + 1, packed_roll(x, cu)), fullgraph=True)
        x, cu = torch.randn(300_000), reference.documents(300_000, 400, head=7, tail=8)
        (_, result), (source,) = run_and_get_code(compiled, x, cu)
        assert "omp parallel" in source
        assert "throw std::runtime_error" not in source
        assert packed_calls(source) == ["host_check_cu_seqlens"]
        assert cpp_calls(source) <= 2
        assert torch.equal(result, packed_roll(x, cu))
        wrong = cu.clone()
        wrong[5] = 0
        with pytest.raises(ValueError, match=r"packpass: cu_seqlens\[5\] = 0 is smaller than cu_seqlens\[4\]"):
            compiled(x, wrong)


def test_check_survives_the_cache() -> None:
    """Code from the FX and AOTAutograd caches still checks, and its key holds the version of the ops."""
    from torch._dynamo.utils import counters

    def function(x: Tensor, cu: Tensor) -> Tensor:
        return packed_roll(x, cu) * 3

    x, good = torch.randn(400, requires_grad=True), torch.tensor([0, 4, 400])

    def compile_again() -> Callable[..., Any]:
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(function, fullgraph=True)
        compiled(x, good).sum().backward()
        return compiled

    with fresh_cache():
        compile_again()
        assert counters["aot_autograd"]["autograd_cache_miss"] == 1
        compiled = compile_again()
        assert counters["aot_autograd"]["autograd_cache_hit"] == 1
        for cu in BAD:
            with pytest.raises(RuntimeError, match=CHECK_MESSAGE):
                compiled(x, torch.tensor(cu))
        with torch.compiler.config.patch(cache_key_tag="packpass-ops=another version"):
            compile_again()
        assert counters["aot_autograd"]["autograd_cache_miss"] == 1


@pytest.mark.parametrize("shift", [-8, -1, 1, 8])
def test_one_graph_is_right_for_rows_of_every_length(shift: int) -> None:
    """Blocks, what they leave over and what is patched around the ends meet at other places in every row."""
    compiled = torch.compile(packed_roll, dynamic=True)
    for total in (1000, 500, 263, 257, 192, 145, 130, 129, 80, 66, 12, 9, 3, 2):
        x = torch.arange(1, total + 1)
        for first, stop in ((0, total), (0, total // 2), (total // 3, total), (1, total - 1), (total // 2, total // 2)):
            cu = torch.tensor([first, (2 * first + stop) // 3, stop], dtype=torch.int32)
            got = compiled(x, cu, shift, -1, 0)
            assert torch.equal(got, packed_roll(x, cu, shift, -1, 0)), (total, first, stop)


@pytest.mark.slow
def test_rolls_of_a_dynamic_row_share_what_is_costly_to_compile() -> None:
    """Where a row is patched is computed once, not once per roll; what is patched is a line per roll, not a loop whose
    lanes a C++ compiler unrolls. Twelve rolls took 17 seconds to compile when neither was so."""

    def depths(fields: list[torch.Tensor], cu: torch.Tensor, most: int) -> list[torch.Tensor]:
        OPS.check_cu_seqlens.default(cu, 1000)
        return [OPS.packed_roll.default(x, cu, -depth, 0, 0) for depth in range(1, most + 1) for x in fields]

    def code(fields: int, most: int) -> str:
        rows = [torch.arange(1000) + i for i in range(fields)]
        cu = torch.tensor([0, 400, 990])
        results, (source,) = run_and_get_code(torch.compile(depths, dynamic=True), rows, cu, most)
        for result, expected in zip(results, depths(rows, cu, most), strict=True):
            assert torch.equal(result, expected)
        assert not [line for line in source.splitlines() if "tmpbuf" in line]
        return source

    one, three, twelve = (len(code(fields, most).splitlines()) for fields, most in ((1, 1), (1, 3), (4, 3)))
    assert three - one < 250
    assert twelve - three < 9 * 40


def test_tables_of_slots_are_shared_by_equal_boundaries_only() -> None:
    """Two sets of boundaries, one of them computed, another made from it, and rows of two lengths."""

    def function(x: Tensor, y: Tensor, cu: Tensor) -> list[Tensor]:
        later = (cu + 1).clamp(max=190)
        return [
            packed_roll(row, bounds, -1)
            for row in (x, y, x + 1)
            for bounds in (cu, later, later.index_fill(0, cu[:1], 0))
        ]

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for cu in ([0, 9, 60, 180], [0, 0, 100, 150], [0, 0, 0, 0]):
        given = (torch.arange(200), torch.arange(190), torch.tensor(cu))
        for result, expected in zip(compiled(*given), function(*given), strict=True):
            assert torch.equal(result, expected)


def test_boundaries_that_are_written_in_place_have_tables_of_their_own() -> None:
    def function(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
        bounds = cu.clone()
        before = packed_roll(x, bounds, -2)
        bounds[1] = 30
        return before, packed_roll(x, bounds, -2)

    given = (torch.arange(200), torch.tensor([0, 90, 200]))
    for result, expected in zip(torch.compile(function, fullgraph=True)(*given), function(*given), strict=True):
        assert torch.equal(result, expected)


def _packed_roll_of_rows(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return _packed_roll_inductor.decomposition(x, cu_seqlens, 1, 0, None)


def _whole_documents(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return _window_mask._decomposition(cu_seqlens, x.shape[0], 0, 0)


@pytest.mark.parametrize("form", [_packed_roll_of_rows, _whole_documents])
def test_the_last_boundary_is_found_without_a_symbolic_number(form: Callable[..., Tensor]) -> None:
    """Of a slice from N on, where N has become 1 while a graph was traced, Inductor takes the size for another one."""
    cu = torch.tensor([0, 4, 9, 61], dtype=torch.int32)
    graph = make_fx(form, tracing_mode="symbolic")(torch.randn(61, 3), cu).graph
    slices = graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor)
    assert not [node for node in slices if any(isinstance(at, torch.fx.Node) for at in node.args[2:])]
    assert graph.find_nodes(op="call_function", target=torch.ops.aten.select.int)


@pytest.mark.parametrize("in_the_graph", [False, True])
def test_boundaries_may_be_refilled_before_the_backward(in_the_graph: bool) -> None:
    """The copy that the backward reads is made in generated code, before anything writes to what it is a copy of."""

    def step(x: Tensor, cu: Tensor, following: Tensor) -> Tensor:
        kept = OPS.snapshot.default(cu)
        out = OPS.packed_roll.default(x * 2, kept, -1, 0, 0)
        if in_the_graph:
            cu.copy_(following)
        return out

    x, first, second = (
        torch.randn(40, 3, requires_grad=True),
        reference.documents(40, 4),
        reference.documents(40, 4) // 2,
    )
    cu, weights = first.clone(), torch.randn(40, 3)
    out, sources = run_and_get_code(torch.compile(step, fullgraph=True), x, cu, second)
    cu.copy_(second)
    out.backward(weights)
    assert torch.equal(out, reference.roll(x.detach() * 2, first, -1, 0, 0))
    assert torch.allclose(x.grad, 2 * reference.roll(weights, first, 1, 0, 0))  # type: ignore[arg-type]
    assert "packpass.snapshot" not in sources[0].split("def call(")[1].replace("[packpass.snapshot", "")
