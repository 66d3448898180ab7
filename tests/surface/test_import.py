"""``import packpass`` is light, lazy and says what it has."""

from __future__ import annotations

import importlib.metadata
import pathlib
import subprocess
import sys

import pytest

import packpass


def run_python(code: str) -> str:
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=root)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("statement", ["import packpass", "import packpass; dir(packpass); packpass.Options"])
def test_import_leaves_torch_alone(statement: str) -> None:
    loaded = run_python(
        f"import sys; {statement}; print([m for m in ('torch', 'tabulate', 'matplotlib') if m in sys.modules])"
    )
    assert loaded == "[]"


def test_report_class_does_not_need_torch() -> None:
    code = "import sys, packpass; str(packpass.Report()); print('torch' in sys.modules)"
    assert run_python(code) == "False"


def test_importing_a_private_module_does_not_shadow_a_public_name() -> None:
    code = """
import packpass.engine.backend, packpass.engine.compile, packpass.engine.explain, packpass.measuring.compare, packpass
print(callable(packpass.backend), callable(packpass.compile), callable(packpass.explain), callable(packpass.compare))
"""
    assert run_python(code) == "True True True True"


def test_every_public_name_resolves() -> None:
    for name in packpass.__all__:
        assert getattr(packpass, name) is not None
    assert set(packpass.__all__) <= set(dir(packpass))


def test_unknown_attribute_names_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'bakend'; it has .*backend"):
        packpass.bakend  # noqa: B018


def test_backend_is_registered_under_its_name() -> None:
    points = importlib.metadata.entry_points(group="torch_dynamo_backends")
    assert {point.name: point.value for point in points}["packpass"] == "packpass.engine.backend:backend"

    import torch

    assert "packpass" in torch._dynamo.list_backends()
    assert packpass.backend is packpass.backend


def test_version_is_the_distribution_s() -> None:
    assert importlib.metadata.version("packpass") == packpass.__version__


def test_packpass_works_when_it_comes_late() -> None:
    """Dynamo caches its dispatch tables at its first compile; hooks that are installed later must reach them too."""
    code = """
import torch
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
import packpass
from tests.surface.models import EAGER, roll_documents
print(len(packpass.explain(roll_documents, options=EAGER)(torch.arange(12), torch.tensor([0, 3, 7, 12])).rewrites))
"""
    assert run_python(code).splitlines()[-1] == "1"


@pytest.mark.slow
def test_ops_that_are_registered_late_are_still_compiled_to_kernels() -> None:
    """Inductor copies its decomposition table at its first compile."""
    code = """
import torch
torch.compile(lambda x: x + 1)(torch.ones(2))
from packpass import _compat
from packpass.measuring.variants import count_code
from packpass.ops import packed_roll
with _compat.empty_compile_caches(), _compat.generated_code() as sources:
    torch.compile(lambda x, cu: packed_roll(x, cu))(torch.arange(12), torch.tensor([0, 3, 12]))
print([name for name in count_code(sources).externs if "packed_roll" in name])
"""
    assert run_python(code).splitlines()[-1] == "[]"
