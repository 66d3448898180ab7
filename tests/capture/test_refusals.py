"""``on_refusal``, and a user's module that is called like ours."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass.decisions.records import RefusedError, collecting
from packpass.reports.report import Report

from .support import boundaries, compiled, equal, graphs, no_rule, row


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def by_capture(x: Tensor, cu: Tensor) -> Tensor:
    out, n = x.clone(), 0
    for s, e in zip(cu[:-1], cu[1:]):
        n = (n + 1) % 3
        out[:, s:e] *= n
    return out


def by_a_pass(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = no_rule(x[:, s:e], 1)
    return out


def rewritten(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].flip(1)
    return out


REFUSED = [(by_capture, "capture", "carried-state"), (by_a_pass, "vectorize_segments", "no-rule")]
IDS = ["capture", "pass"]


@pytest.mark.parametrize(("fn", "rule", "code"), REFUSED, ids=IDS)
def test_raise(fn: Callable[..., Any], rule: str, code: str) -> None:
    call = compiled(fn, on_refusal="raise")
    with pytest.raises(RefusedError) as caught:
        call(row(), boundaries(4))
    assert (caught.value.refusal.rule, caught.value.refusal.code) == (rule, code)
    assert f"test_refusals.py:{fn.__code__.co_firstlineno + 2}" in str(caught.value)
    assert f"[{code}]" in str(caught.value)
    assert "packpass.on_refusal" in str(caught.value)
    # and again: the error is not cached as "run this frame eagerly"
    with pytest.raises(RefusedError):
        call(row(), boundaries(5))


@pytest.mark.parametrize(("fn", "rule", "code"), REFUSED, ids=IDS)
def test_warn(fn: Callable[..., Any], rule: str, code: str) -> None:
    call = compiled(fn, on_refusal="warn")
    with pytest.warns(UserWarning, match=rf"packpass: .*test_refusals\.py:\d+ \[{code}\]: \w"):
        out = call(row(), boundaries(4))
    equal(fn(row(), boundaries(4)), out)


@pytest.mark.parametrize("on_refusal", ["ignore", "warn", "raise"])
def test_nothing_to_say_about_what_is_rewritten(on_refusal: str) -> None:
    call = compiled(rewritten, on_refusal=on_refusal)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        equal(rewritten(row(), boundaries(4)), call(row(), boundaries(4)))
    assert not [w for w in caught if "packpass" in str(w.message)]
    assert graphs() == 1


def by_key(data: dict[str, Tensor]) -> Tensor:
    """The number in front of the loop decides in Python what the loop is about."""
    cu, out = data["cu"], data["row"].clone()
    n = cu[-1].item()
    for value in data.values():
        if value.numel() == 2 * n:
            for i in range(len(cu) - 1):
                out[:, cu[i] : cu[i + 1]] = value[:, cu[i] : cu[i + 1]].flip(1)
    return out


def test_a_number_read_in_front_of_a_loop_is_no_sign_of_dead_hooks() -> None:
    """The graph breaks there as in stock torch."""
    call, codes = compiled(by_key, on_refusal="warn"), []
    for n in (4, 5, 6):
        cu = boundaries(n)
        data = {"row": row()[:, : int(cu[-1])], "cu": cu}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            equal(by_key(data), call(data))
        codes += [str(w.message) for w in caught if "packpass" in str(w.message)]
    assert codes
    assert not [text for text in codes if "hooks-dead" in text]


def test_after_an_error_the_next_model_compiles() -> None:
    with pytest.raises(RefusedError):
        compiled(by_capture, on_refusal="raise")(row(), boundaries(4))
    call = compiled(rewritten, on_refusal="raise")
    equal(rewritten(row(), boundaries(4)), call(row(), boundaries(4)))


PROGRAM = """
import torch, packpass
try:
    torch.compile(lambda x: x + 1, backend={backend})(torch.ones(2))
except ImportError as error:
    print("ImportError:", error)
else:
    print("no error")
"""


@pytest.mark.parametrize(("as_package", "backend"), [(False, "packpass.backend"), (True, "'packpass'")])
def test_a_module_called_passes_in_front_of_ours(tmp_path: Path, as_package: bool, backend: str) -> None:
    theirs = tmp_path / "passes" / "__init__.py" if as_package else tmp_path / "passes.py"
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("ORDER = ()\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(backend=backend)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("ImportError: packpass needs its package 'passes'")
    assert str(theirs) in done.stdout
    assert "Rename" in done.stdout


def runs_eagerly(function: Any, call: Callable[[], Any]) -> bool:
    """Does the interpreter enter the code of ``function`` while something is called?"""
    entered = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is function.__code__:
            entered.append(frame.f_lineno)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return bool(entered)


def test_a_function_that_is_given_up_later() -> None:
    """Of a batch without documents torch sees no loop, but a read on the host, and gives the function up. What was
    compiled for other batches still runs."""

    def sums(x: Tensor, ends: Tensor) -> Tensor:
        out = x.new_zeros(len(ends))
        for i in range(len(ends) - 1):
            out[i] += x[ends[i] : ends[i + 1]].sum()
        out[-1] += x[ends[-1] :].sum()
        return out

    fn, x, report = compiled(sums), torch.arange(12.0), Report()
    with collecting(report):
        for ends in ([0, 3, 7], [0, 2, 4, 6], [0], [0, 5]):
            equal(sums(x, torch.tensor(ends)), fn(x, torch.tensor(ends)))
    assert [(r.code, "compiles this function no more" in r.reason) for r in report.refusals] == [
        ("frame-not-compiled", True)
    ]
    assert runs_eagerly(sums, lambda: fn(x, torch.tensor([0])))
    assert not runs_eagerly(sums, lambda: fn(x, torch.tensor([0, 1, 5, 6])))


def test_a_loop_behind_a_read_that_could_not_be_captured() -> None:
    """Numbers are captured for the read, then something else of the loop ends the graph: that is said."""

    def routed(x: Tensor, ids: Tensor) -> Tensor:
        start, out = 0, []
        for n in ids.sum(0).cpu().numpy():
            end = start + n
            if n == 0:
                continue
            out.append(x[start:end] * 2)
            start = end
        return torch.cat(out)

    fn, x, report = compiled(routed), torch.zeros(6, 3), Report()
    ids = torch.tensor([[1, 0, 2], [0, 0, 1]])
    with collecting(report):
        equal(routed(x, ids), fn(x, ids))
    assert [r.code for r in report.refusals] == ["lengths-unknown"]


def counted_by_the_largest(mask: Tensor) -> Tensor:
    """As many documents as the largest entry of a matrix says, which holds the number of its document in every slot."""
    largest = mask.max().item()
    counts = torch.zeros(mask.shape[0], largest)
    for i in range(largest):
        counts[:, i] = (mask == i + 1).sum(-1)
    return counts


def test_a_loop_that_goes_as_often_as_a_number_in_a_tensor_says() -> None:
    mask = torch.tensor([[1, 1, 2, 0], [1, 2, 3, 3]])
    report = packpass.explain(counted_by_the_largest)(mask)
    assert torch.equal(report.result, counted_by_the_largest(mask))
    assert not report.rewrites
    assert {r.code for r in report.refusals} == {"lengths-unknown"}
    assert all("test_refusals.py" in r.location for r in report.refusals)
