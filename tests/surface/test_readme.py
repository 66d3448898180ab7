"""What README says about names and defaults is so."""

from __future__ import annotations

import dataclasses
import pathlib
import re

import torch

import packpass
from packpass._options import Options
from packpass.cli.main import _parser

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_of_options_is_complete_and_right() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", README, flags=re.MULTILINE)
    defaults = {field.name: getattr(Options(), field.name) for field in dataclasses.fields(Options)}
    assert {name: value.replace('"', "'") for name, value in rows} == {n: repr(v) for n, v in defaults.items()}


def test_the_quick_start_works() -> None:
    block = re.search(r"(def shift_labels.*?return labels\n)", README, flags=re.DOTALL)
    assert block is not None
    scope: dict[str, object] = {"torch": torch}
    source = ROOT / "README.md"
    exec(compile(block[1], str(source), "exec"), scope)
    ids, cu = torch.arange(1, 13)[None], torch.tensor([0, 3, 7, 12])
    report = packpass.explain(scope["shift_labels"], options={"packpass.inner_backend": "eager"})(ids, cu)  # type: ignore[arg-type]
    assert report.result.tolist() == [[2, 3, -100, 5, 6, 7, -100, 9, 10, 11, 12, -100]]
    assert [rewrite.rule for rewrite in report.rewrites] == ["vectorize_segments"]


def test_commands_exist() -> None:
    commands = re.findall(r"python -m packpass (\w+)", README)
    assert set(commands) == {"doctor", "explain", "compare", "audit", "ops"}
    for command in set(commands):
        arguments = [command, "a:b"] if command in ("explain", "compare", "audit") else [command]
        assert _parser().parse_args(arguments).run
    targets = re.findall(r"^make ([\w-]+)", README, flags=re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert set(targets) == {"report", "test", "test-matrix"}
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


def test_no_file_names_this_machine() -> None:
    suspicious = re.compile(r"/(?:work|root|home|opt)/\w|file://|https?://(?!www\.apache\.org)")
    for pattern in (
        "*.md",
        "*.toml",
        "*.txt",
        "Makefile",
        ".ci/run",
        "packpass/**/*.py",
        "passes/**/*.py",
        "perf/**/*.py",
    ):
        for path in ROOT.glob(pattern):
            found = suspicious.findall(path.read_text(encoding="utf-8"))
            assert not found, f"{path}: {found}"
