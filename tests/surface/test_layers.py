"""The folders are layers: each may use those above it in the table and none below, lazily or not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import packpass
from packpass import _passes

ROOT = Path(packpass.__file__).parent
PASSES = ROOT.parent / "passes"

LAYERS = [
    "_compat _options _passes _registry _links decisions",
    "semantics",
    "ops",
    "markers",
    "layout",
    "probing",
    "passes",
    "capture",
    "ranks reports",
    "engine",
    "measuring",
    "leaks",
    "cli",
]
"""From the top of the table down. Rooms of one layer do not know each other, but for the files of the first."""

ENTRANCES = {"__init__", "__main__", "_packed", "testing", "pytest_plugin"}
"""Files of the public names: they load what they need on first use."""

PUBLIC = set(packpass.__all__) - {"ops", "testing"}
"""What stands above the engine may use the package as users do."""

LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms.split()}


def room_of(module: str) -> str:
    parts = module.split(".")
    return "passes" if parts[0] == "passes" else parts[1] if len(parts) > 1 else ""


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Rooms that a file imports, inside functions and for types too, and the lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("packpass", "passes"):
            names = [f"packpass.{a.name}" for a in node.names] if node.module == "packpass" else [node.module]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.split(".")[0] in ("packpass", "passes")]
        else:
            continue
        yield from ((room_of(name), node.lineno) for name in names)


def files_of(room: str) -> list[Path]:
    folder = PASSES if room == "passes" else ROOT / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [ROOT / f"{room}.py"]


@pytest.mark.parametrize("room", LEVEL)
def test_a_layer_knows_only_those_above_it(room: str) -> None:
    files = files_of(room)
    assert files
    assert all(path.exists() for path in files)
    for path in files:
        for other, line in imports(path):
            if other == room or (other in PUBLIC and LEVEL[room] > LEVEL["engine"]):
                continue
            assert other in LEVEL, f"{path}:{line} imports {other}, which is in no layer"
            above = LEVEL[other] < LEVEL[room] or (LEVEL[other] == LEVEL[room] == 0)
            assert above, f"{path}:{line}: {room} must not know {other}"


def test_every_folder_is_in_a_layer() -> None:
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    files = {path.stem for path in ROOT.glob("*.py")}
    assert rooms | files | {"passes"} == set(LEVEL) | ENTRANCES


def test_no_folder_hides_a_public_name() -> None:
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert rooms & set(packpass.__all__) == {"ops"}


# === Inside the layers ==============================================================================================


def modules() -> dict[str, Path]:
    found = {}
    for folder in (ROOT, PASSES):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(ROOT.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported(path: Path, types: bool = True) -> Iterator[str]:
    """Modules of ours that a file imports, inside functions and, with ``types``, for types only too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    asked = (node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    left_out = set() if types else {id(inner) for node in asked for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_pass_knows_another() -> None:
    homes = {p.module.split(".")[1] for p in _passes.PASSES}
    for path in PASSES.rglob("*.py"):
        mine = path.relative_to(PASSES).parts[0]
        others = {name.split(".")[1] for name in imported(path) if name.startswith("passes.")} & homes
        others -= {mine.removesuffix(".py")}
        assert not others or mine == "__init__.py", f"{path} knows {others}: what they share belongs to passes/"


def test_no_circles() -> None:
    """No module can be reached from itself, lazy imports included; types may be mentioned both ways."""
    graph = {name: {*imported(path, types=False)} & MODULES.keys() - {name} for name, path in MODULES.items()}
    changed = True
    while changed:
        reached = set[str]().union(*graph.values())
        kept = {name: near for name, near in graph.items() if near & graph.keys() and name in reached}
        changed, graph = len(kept) < len(graph), kept
    assert not graph, f"these import each other: {sorted(graph)}"


# === What one can read at a time ====================================================================================


def test_files_and_functions_stay_short() -> None:
    long = []
    for folder in (ROOT, PASSES, ROOT.parent / "perf", ROOT.parent / "tests"):
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if text.count("\n") > 400 and folder.name != "tests":  # lists of programs are as long as they are
                long.append(str(path))
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef) and node.end_lineno and node.end_lineno - node.lineno >= 60:
                    long.append(f"{path}:{node.lineno} {node.name}")
    assert not long
