"""A GPU that only exists in tensors without memory: what is compiled for it can be looked at, and run for its shapes,
dtypes and devices, on a machine without one.

Fake tensors (`FakeTensorMode`) on ``cuda`` do, but for one thing: a CPU build of torch has nothing to switch devices
with, which indexing does in C++. A guard that does nothing, which torch offers for that, is compiled and registered.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tests.ops.fake_cuda import mocked_device

_GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace {
using Guard = c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>;
C10_REGISTER_GUARD_IMPL(CUDA, Guard);
}
"""


@functools.cache
def _register_guard() -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler here")
    home = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "guard.cpp"), Path(folder, "guard.so")
        source.write_text(_GUARD, encoding="utf-8")
        options = ["-shared", "-fPIC", "-std=c++20", f"-I{home / 'include'}", f"-L{home / 'lib'}"]
        subprocess.run([compiler, *options, str(source), "-o", str(library), "-lc10"], check=True, timeout=120)
        ctypes.CDLL(str(library))


@contextlib.contextmanager
def fake_gpu() -> Iterator[FakeTensorMode]:
    """While open, torch believes in one CUDA device; tensors there are made in the yielded mode."""
    if torch.cuda.is_available():
        pytest.skip("there is a real GPU here")
    _register_guard()
    with (
        mocked_device(),
        mock.patch("torch.cuda.get_rng_state", return_value=torch.zeros(1)),
        mock.patch("torch.cuda.set_rng_state"),
    ):
        yield FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def fakes(mode: FakeTensorMode, tensors: Sequence[Tensor], devices: Sequence[str]) -> list[Tensor]:
    """Tensors of the same shapes, strides and dtypes on other devices."""
    with mode:
        return [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
            for x, device in zip(tensors, devices, strict=True)
        ]
