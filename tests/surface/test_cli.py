"""The command line, in process, and once for real."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch

from packpass.cli import main as _cli
from packpass.cli.main import UsageError, load, main

MODELS = "tests.surface.models"
QUICK = ["--option", "inner_backend=eager"]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def test_explain_prints_the_report(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    page, data = tmp_path / "r.html", tmp_path / "r.json"
    assert main(["explain", f"{MODELS}:make_roll", *QUICK, "--html", str(page), "--json", str(data)]) == 0
    out, err = capsys.readouterr()
    assert "packpass.explain(roll_documents)" in out
    assert "vectorize_segments" in out
    assert f"wrote {page}" in err
    assert json.loads(data.read_text())["graphs"] == 1
    assert "vectorize_segments" in page.read_text()


def test_json_to_standard_output_is_only_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{MODELS}:make_scale", *QUICK, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "packpass.explain(Scale)"


def test_a_model_that_raises_gives_1_and_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{MODELS}:make_failing", *QUICK]) == 1
    assert "RuntimeError: the model is broken" in capsys.readouterr().err


def test_compare_prints_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    from packpass.measuring import compare

    real = compare.compile_afresh
    monkeypatch.setattr(compare, "compile_afresh", lambda m, b, kw: real(m, "eager" if b == "inductor" else b, kw))
    plot = tmp_path / "c.svg"
    assert main(["compare", f"{MODELS}:make_scale", *QUICK, "--forward", "--budget", "0.05", "--plot", str(plot)]) == 0
    assert "Scale: forward on cpu" in capsys.readouterr().out
    assert "<svg" in plot.read_text()
    assert main(["compare", f"{MODELS}:make_failing", *QUICK, "--budget", "0.05"]) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["explain", "no_such_module:make"], "no module 'no_such_module'"),
        (["explain", "tests.no_such:make"], "no module 'tests.no_such'"),
        (["explain", "nofile.py:make"], "no file nofile.py"),
        (["explain", MODELS], "must be MODULE:CALLABLE"),
        (["explain", f"{MODELS}:mak_roll"], "has no 'mak_roll'; it has .*make_roll"),
        (["explain", f"{MODELS}:not_callable"], "is a int, not something to call"),
        (["explain", f"{MODELS}:make_no_tuple"], "must return .*model, args.*, got Scale"),
        (["explain", f"{MODELS}:make_bare_args"], "args is a Tensor, not a tuple"),
        (["explain", f"{MODELS}:make_roll", "--option", "verify"], "must be KEY=VALUE"),
        (["explain", f"{MODELS}:make_roll", "--option", "verify=maybe"], "packpass.verify = 'maybe': allowed are"),
        (["explain", f"{MODELS}:make_roll", "--option", "packpass.verfy=1"], "unknown option 'packpass.verfy'"),
        (
            ["compare", f"{MODELS}:make_roll", "--mode", "max-autotune", *QUICK],
            "either --mode or --option.*PACKPASS_INNER_BACKEND",
        ),
        (
            ["explain", f"{MODELS}:make_roll", *QUICK, "--html", "/no/such/folder/r.html"],
            "cannot write /no/such/folder",
        ),
    ],
)
def test_usage_errors_give_2_and_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    import re

    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert re.search(words, err), err
    assert "Traceback" not in err


def test_argparse_errors_give_2() -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["explian"])
    assert stopped.value.code == 2


def test_help_says_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["-h"], ["compare", "-h"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 0
        out = capsys.readouterr().out
        assert "(model, args) or (model, args, kwargs)" in out
        assert "exit codes" in out


@pytest.mark.parametrize(
    ("entry", "pair"),
    [
        ("verify=on", ("packpass.verify", True)),
        ("packpass.fix_shifts=off", ("packpass.fix_shifts", "off")),
        ("disable=pack_shifts,fuse_all_to_all", ("packpass.disable", ("fuse_all_to_all", "pack_shifts"))),
        ("max_autotune=True", ("max_autotune", True)),
        ("triton.cudagraphs=0", ("triton.cudagraphs", 0)),
        ("cpp.something=text", ("cpp.something", "text")),
        ("x=a b", ("x", "a b")),
    ],
)
def test_options_are_read_as_values(entry: str, pair: tuple[str, Any]) -> None:
    assert _cli._option(entry) == pair


def test_targets_in_files_and_their_neighbours(tmp_path: pathlib.Path) -> None:
    (tmp_path / "neighbour_of_the_example.py").write_text("def model(x):\n    return x\n")
    (tmp_path / "an_example.py").write_text(
        "from neighbour_of_the_example import model\nclass Makers:\n"
        "    @staticmethod\n    def make():\n        return model, [1], {'y': 2}\n"
    )
    model, args, kwargs = load(f"{tmp_path / 'an_example.py'}:Makers.make")
    assert model(3) == 3
    assert (args, kwargs) == ((1,), {"y": 2})


def test_a_target_with_a_missing_import_names_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_something.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match="needs_something imports 'surely_not_installed', which is not installed"):
        load("needs_something:make")


def test_python_dash_m_for_real(tmp_path: pathlib.Path) -> None:
    (tmp_path / "example.py").write_text(
        "import torch\n\ndef model(x):\n    return x + 1\n\ndef make():\n    return model, (torch.ones(2),)\n"
    )
    command = [sys.executable, "-m", "packpass", "explain", "example:make", "--option", "inner_backend=eager"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "packpass.explain(model)" in done.stdout
    assert "1 graph, 0 graph breaks" in done.stdout


def test_ops_lists_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "softmax", "products"]) == 0
    out, _ = capsys.readouterr()
    assert "log_softmax" in out
    assert "baddbmm" in out
    assert "bik, bkj -> bij" in out
    assert "embedding" not in out


def test_ops_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--json", "-"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["gcd"]["family"] == "pointwise"
    assert "vectorize_segments" in rows["cumsum"]["passes"]
    assert "random" in rows["dropout"]["traits"]
    assert all(row["axes"] for row in rows.values())


def test_ops_says_that_it_does_not_know_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "no_such_operation"]) == 0
    assert "no operation of that name" in capsys.readouterr().out
