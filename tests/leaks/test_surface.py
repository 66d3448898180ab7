"""``packpass.audit`` as people use it: errors, reports, the command line, tests of their own, compiled models."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass.cli.main import main
from tests.leaks.planted import CU, LINEAR, T, convolution, packed_shift, planted_lines, row, token_wise

pytest_plugins = ["pytester"]
EAGER = {"options": {"packpass.inner_backend": "eager"}}

# === Bad input ===============================================================================================


@pytest.mark.parametrize(
    ("model", "given", "args", "words"),
    [
        (lambda x: LINEAR(x), None, (row(),), "no boundaries .* packpass.audit\\(model, cu_seqlens=boundaries\\)"),
        (lambda x: LINEAR(x), [0, 5, 99], (row(),), "ends at 99, .*x \\(1, 24, 12\\)"),
        (lambda x: LINEAR(x), [0, 9, 3, T], (row(),), "must not decrease"),
        (lambda x: LINEAR(x), [0.0, 24.0], (row(),), "two integers in one dimension"),
        (lambda x: LINEAR(x), [0, T], (row(),), "there is one only"),
        (lambda ids: ids.roll(1), [0, 9, T], (torch.arange(T) * 5 % 24,), "floating-point outputs .*int64"),
        (lambda x: LINEAR(x).sum(), [0, 9, T], (row(),), "there is none \\(output torch.float32 \\(\\)\\)"),
        (lambda x: torch.ones(1, T, 2), [0, 9, T], (row(),), "no output changed anywhere"),
        (lambda p: LINEAR(p.float()[:, None].expand(T, 12)), [0, T], (torch.arange(T),), "there is one only"),
        (lambda p: p.float(), [0, 9, T], (torch.arange(T),), "no token to change .*p: positions"),
        (lambda x, a, b: x, None, (row(), CU, CU), "no boundaries"),
    ],
)
def test_an_error_says_what_to_give(model: Callable[..., Any], given: Any, args: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        packpass.audit(model, given)(*args)


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="takes a callable, got int"):
        packpass.audit(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown option"):
        packpass.audit(token_wise, options={"packpass.nonsense": 1})
    with pytest.raises(ValueError, match="must be at least 1"):
        packpass.audit(token_wise, documents=0)(row(), CU)
    with pytest.raises(ValueError, match="there are documents 0 to 2"):
        packpass.audit(token_wise, documents=[7])(row(), CU)
    with pytest.raises(RuntimeError, match="the model's own"):
        packpass.audit(_raises)(row(), CU)


def _raises(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    raise RuntimeError("the model's own")


# === What is said ============================================================================================


def test_text_json_and_html(tmp_path: Path) -> None:
    found = packpass.audit(convolution)(row(), CU)
    text = str(found)
    assert "NOT clean: 1 leak" in text
    assert "conv1d" in text
    assert "the next 2 slots" in text
    data = json.loads(found.to_json())
    assert data["clean"] is False
    assert data["leaks"][0]["operation"] == "conv1d"
    assert data["leaks"][0]["source_document"] == 0
    found.to_html(tmp_path / "audit.html")
    page = (tmp_path / "audit.html").read_text()
    line = found.leaks[0].location.rpartition(":")[2]
    assert f'<span class="bad">{line:>5} &gt;     mixed = CONV(x.transpose(1, 2))  # leak</span>' in page
    assert "<script" not in page


def test_what_was_not_covered_is_said() -> None:
    cu = torch.arange(0, T + 1, 4)
    found = packpass.audit(token_wise, documents=2)(row(), cu)
    assert found.probed == (0, 5)
    assert any("4 of 6 documents were not changed" in line for line in found.not_covered)
    found = packpass.audit(lambda x, cu_seqlens: {"y": LINEAR(x), "cache": _Cache()})(row(), CU)
    assert any("cache is a _Cache" in line for line in found.not_covered)
    with torch.no_grad():
        assert packpass.audit(token_wise)(row(), CU).compared == ("output",)
    assert packpass.audit(token_wise, backward=False)(row(), CU).compared == ("output",)


class _Cache:
    pass


def by_numpy(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return LINEAR(x) + torch.from_numpy(x.detach().numpy().cumsum(1).copy())  # leak


def by_a_number(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return LINEAR(x) / float(x.max())  # leak


def by_a_list(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    values = x[0].tolist()  # leak
    return x + torch.tensor(values[1:] + values[:1])[None]


def inside_vmap(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return torch.vmap(lambda one: LINEAR(one).cumsum(0))(x)  # leak


@pytest.mark.parametrize("model", [by_numpy, by_a_number, by_a_list, inside_vmap])
def test_where_a_leak_could_not_be_followed_further_is_named(model: Callable[..., Any]) -> None:
    (leak,) = packpass.audit(model)(row(), CU).leaks
    assert int(leak.location.rpartition(":")[2]) in planted_lines(model)
    assert "cannot be followed" in leak.advice


def test_a_leak_outside_torch_reaches_as_far_as_outputs_say() -> None:
    assert packpass.audit(by_numpy)(row(), CU).leaks[0].distance == "all later slots"


def test_what_vmap_hides_is_found() -> None:
    found = packpass.audit(inside_vmap)(row(), CU)
    assert any("torch.vmap" in line for line in found.not_covered)
    assert packpass.audit(lambda x, cu_seqlens: torch.vmap(lambda one: LINEAR(one))(x))(row(), CU).clean


def test_rounding_is_no_leak_and_is_said() -> None:
    def rounds(x: Tensor, cu_seqlens: Tensor) -> Tensor:
        large = x.sum(1, keepdim=True) * 1e-3
        return (LINEAR(x) + large) - large

    found = packpass.audit(rounds, backward=False)(row(), CU)
    assert found.clean
    assert any("rounding" in line for line in found.not_covered)


# === Tests of users ==========================================================================================


def test_assert_isolated() -> None:
    assert packpass.testing.assert_isolated(packed_shift, (row(), CU)).clean
    assert packpass.testing.assert_isolated(lambda x: LINEAR(x), (row(),), {}, [0, 9, T]).clean
    with pytest.raises(AssertionError, match=r"conv1d.*planted\.py:\d+"):
        packpass.testing.assert_isolated(convolution, [row()], {"cu_seqlens": CU})
    with pytest.raises(TypeError, match="args must be a list or tuple"):
        packpass.testing.assert_isolated(convolution, row())


def test_the_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys
        def test_light(request):
            assert "torch" not in sys.modules
        def test_model(assert_isolated):
            import torch
            x, cu = torch.randn(1, 9, 4), torch.tensor([0, 4, 9])
            assert_isolated(torch.nn.Linear(4, 4), (x,), cu_seqlens=cu)
        def test_leak(assert_isolated):
            import torch
            assert_isolated(lambda x: x.cumsum(1), (torch.randn(1, 9, 4),), cu_seqlens=[0, 4, 9])
        """
    )
    root = str(Path(packpass.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "packpass.pytest_plugin", "-p", "no:cacheprovider", "."],
        cwd=pytester.path,
        env={"PYTHONPATH": root, "PATH": "/usr/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "cumsum" in done.stdout


def test_the_plugin_is_registered() -> None:
    text = (Path(packpass.__file__).parents[1] / "pyproject.toml").read_text()
    assert re.search(r'\[project\.entry-points\.pytest11\]\npackpass = "packpass\.pytest_plugin"', text)


# === The command line ========================================================================================

PROGRAM = """
import torch
lin = torch.nn.Linear(4, 4)
cu = torch.tensor([0, 4, 9])
def leaking():
    return (lambda x, cu_seqlens: lin(x).cumsum(1)), (torch.randn(1, 9, 4), cu)
def clean():
    return (lambda x, cu_seqlens: lin(x)), (torch.randn(1, 9, 4), cu)
def untold():
    return lin, (torch.randn(1, 9, 4),)
"""


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "audited_program.py").write_text(PROGRAM)
    file = str(tmp_path / "audited_program.py")
    assert main(["audit", f"{file}:leaking", "--html", str(tmp_path / "a.html")]) == 1
    assert "cumsum" in capsys.readouterr().out
    assert (tmp_path / "a.html").exists()
    assert main(["audit", f"{file}:clean", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["clean"] is True
    assert main(["audit", f"{file}:untold"]) == 2
    assert "no boundaries" in capsys.readouterr().err
    assert main(["audit", f"{file}:untold", "--cu-seqlens", "0,4,9", "--forward", "--documents", "1"]) == 0
    assert main(["audit", f"{file}:untold", "--cu-seqlens", "0,x"]) == 2


# === Compiled models =========================================================================================


def shift(hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
    return LINEAR(torch.cat([hidden_states[:, 1:], torch.zeros_like(hidden_states[:, :1])], 1))


def loop(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu_seqlens) - 1):
        s, e = cu_seqlens[i], cu_seqlens[i + 1]
        out[:, s:e] = torch.roll(x[:, s:e], -1, 1) * 2
    return LINEAR(out)


def test_a_shift_that_packpass_fixes_leaks_only_without_it() -> None:
    assert not packpass.audit(shift)(row(), CU).clean
    assert packpass.audit(shift, backend="packpass", **EAGER)(row(), CU).clean


def test_a_captured_loop_is_clean_with_and_without_packpass() -> None:
    assert packpass.audit(loop)(row(), CU).clean
    found = packpass.audit(loop, backend="packpass", **EAGER)(row(), CU)
    assert found.clean, str(found)


def test_what_packpass_leaves_is_located_in_its_graphs() -> None:
    def both(hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
        return shift(hidden_states, cu_seqlens) + convolution(hidden_states, cu_seqlens)

    found = packpass.audit(both, backend="packpass", **EAGER)(row(), CU)
    assert [leak.operation for leak in found.leaks] == ["conv1d"]
    assert "planted.py" in found.leaks[0].location
    assert {leak.operation for leak in packpass.audit(both)(row(), CU).leaks} == {"conv1d", "cat"}


def test_shifts_that_packpass_leaves_are_located_too() -> None:
    off = {"options": {"packpass.inner_backend": "eager", "packpass.fix_shifts": "off"}}
    found = packpass.audit(shift, backend="packpass", **off)(row(), CU)
    assert [leak.operation for leak in found.leaks] == ["cat"]


def test_a_compiled_model_is_audited_without_its_compiler() -> None:
    compiled = torch.compile(shift, backend="eager")
    found = packpass.audit(compiled)(row(), CU)
    assert not found.clean
    assert any("backend=" in line for line in found.not_covered)


def test_graph_breaks_are_named() -> None:
    def broken(x: Tensor, cu_seqlens: Tensor) -> Tensor:
        y = LINEAR(x)
        torch._dynamo.graph_break()
        return y.cumsum(1)

    found = packpass.audit(broken, backend="packpass", **EAGER)(row(), CU)
    assert any("graph break" in line for line in found.not_covered)
    assert [leak.operation for leak in found.leaks] == ["cumsum"]
