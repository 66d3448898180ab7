"""The command line: ``python -m packpass doctor | ops | explain | compare | audit MODULE:CALLABLE``."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from packpass._options import PREFIX, Options, parse
from packpass.decisions.codes import CODES

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2

_EPILOG = """\
MODULE:CALLABLE names a function without arguments that returns (model, args) or (model, args, kwargs), for example

    # example.py
    def make():
        return model, (ids, cu_seqlens)

    python -m packpass explain example:make
    python -m packpass compare example.py:make --html report.html
    python -m packpass audit example.py:make

exit codes: 0 fine; 1 the model raised, packpass gave other results than eager, one document sees another (audit), or
doctor found something broken; 2 wrong usage
"""


class UsageError(Exception):
    """Something the user can put right on the command line; printed without a traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    # The profiler of some torch builds prints a line per start and stop otherwise.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except UsageError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return EXIT_USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="packpass",
        description="Compiler passes for packed (THD) sequences: look at what they do.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    from packpass import __version__

    parser.add_argument("--version", action="version", version=f"packpass {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    doctor = commands.add_parser("doctor", help="versions, capture hooks and what they do, passes, devices, options")
    doctor.add_argument(
        "--json", metavar="FILE", help="also write the diagnosis as JSON ('-' for standard output only)"
    )
    doctor.add_argument("--codes", action="store_true", help="list the codes of refusals instead")
    doctor.add_argument(
        "--no-canaries",
        action="store_true",
        help="do not compile small programs to see what is rewritten (saves about 15 seconds); a hook that is "
        "installed and does nothing is then not noticed, and every group is shown as unproven",
    )
    doctor.set_defaults(run=_doctor)

    known = commands.add_parser(
        "ops", help="the operations whose meaning is known, and which passes have rules for them"
    )
    known.add_argument("name", nargs="*", help="only operations with this in their name, or of this family")
    known.add_argument("--json", metavar="FILE", help="also write the table as JSON ('-' for standard output only)")
    known.set_defaults(run=_ops)

    for name, run, text in (
        ("explain", _explain, "run a model once and say what was rewritten, what was left alone and why"),
        ("compare", _compare, "eager, stock torch.compile and packpass side by side"),
        ("audit", _audit, "whether one document sees another, through which operation, at which line"),
    ):
        command = commands.add_parser(
            name, help=text, description=text, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.add_argument("target", metavar="MODULE:CALLABLE", help="what makes the model and its arguments")
        command.add_argument("--json", metavar="FILE", help="write the result as JSON ('-' for standard output only)")
        command.add_argument("--html", metavar="FILE", help="write the result as one self-contained page")
        command.add_argument(
            "--option",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help=f"an entry of torch.compile's options; packpass's own: {', '.join(_option_names())}",
        )
        command.add_argument("--mode", help="torch.compile's mode, e.g. max-autotune (not together with --option)")
        command.add_argument("--fullgraph", action="store_true", help="fail on a graph break")
        command.add_argument("--dynamic", choices=("true", "false"), help="torch.compile's dynamic")
        command.set_defaults(run=run)
        _own_arguments(name, command)
    return parser


def _own_arguments(name: str, command: argparse.ArgumentParser) -> None:
    """What only one of the commands takes."""
    if name == "audit":
        _audit_arguments(command)
    elif name == "explain":
        command.add_argument("--layout", action="store_true", help="also print which dimensions are packed")
    else:
        command.add_argument("--plot", metavar="FILE", help="write a bar chart (.png, .svg, .pdf)")
        command.add_argument("--forward", action="store_true", help="leave the backward out")
        command.add_argument("--budget", type=float, default=6.0, help="seconds for the timed rounds (default 6)")


def _audit_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--cu-seqlens", metavar="0,N,...", help="boundaries of the documents, if the call does not tell them"
    )
    command.add_argument("--documents", type=int, default=3, help="how many documents to change (default 3)")
    command.add_argument("--forward", action="store_true", help="leave gradients out")
    command.add_argument("--backend", help="audit what this backend of torch.compile makes of the model: packpass ...")


def _option_names() -> list[str]:
    return [f"{PREFIX}{field.name}" for field in dataclasses.fields(Options)]


def _doctor(arguments: argparse.Namespace) -> int:
    from packpass.cli.doctor import codes_text, diagnose, diagnosis_json, diagnosis_text, healthy

    if arguments.codes:
        _print(codes_text(), json.dumps(CODES, indent=2), arguments.json)
        return EXIT_OK
    checks = diagnose(canaries=not arguments.no_canaries)
    _print(diagnosis_text(checks), diagnosis_json(checks), arguments.json)
    return EXIT_OK if healthy(checks) else EXIT_FAILED


def _ops(arguments: argparse.Namespace) -> int:
    from packpass.cli.operations import table, table_json

    _print(table(arguments.name), table_json(arguments.name), arguments.json)
    return EXIT_OK


def _explain(arguments: argparse.Namespace) -> int:
    from packpass import explain

    keywords = _compile_keywords(arguments)
    model, args, kwargs = load(arguments.target)
    try:
        report = explain(model, **keywords)(*args, **kwargs)
    except Exception as error:
        return _failed(error)
    text = f"{report}\n\n{report.layout or 'no packed dimension was found'}" if arguments.layout else str(report)
    _print(text, report.to_json(), arguments.json)
    if arguments.html:
        _write(arguments.html, report.to_html)
    return EXIT_OK


def _compare(arguments: argparse.Namespace) -> int:
    from packpass import compare

    keywords = _compile_keywords(arguments)
    model, args, kwargs = load(arguments.target)
    backward = False if arguments.forward else None
    comparison = compare(model, backward=backward, budget=arguments.budget, **keywords)(*args, **kwargs)
    _print(str(comparison), comparison.to_json(), arguments.json)
    if arguments.html:
        _write(arguments.html, comparison.to_html)
    if arguments.plot:
        try:
            _write(arguments.plot, comparison.plot)
        except ImportError as error:
            raise UsageError(str(error)) from None
    return EXIT_OK if comparison.ok else EXIT_FAILED


def _audit(arguments: argparse.Namespace) -> int:
    from packpass import audit

    keywords = _compile_keywords(arguments)
    model, args, kwargs = load(arguments.target)
    given = arguments.cu_seqlens
    try:
        cu_seqlens = [int(entry) for entry in given.split(",")] if given else None
    except ValueError:
        raise UsageError(f"--cu-seqlens {given!r}: must be integers with commas, such as 0,7,15") from None
    backward = False if arguments.forward else None
    try:
        found = audit(
            model,
            cu_seqlens,
            documents=arguments.documents,
            backward=backward,
            backend=arguments.backend,
            **keywords,
        )(*args, **kwargs)
    except ValueError as error:
        if not _says_what_to_give(error):
            return _failed(error)
        raise UsageError(str(error)) from None
    except Exception as error:
        return _failed(error)
    _print(str(found), found.to_json(), arguments.json)
    if arguments.html:
        _write(arguments.html, found.to_html)
    return EXIT_OK if found.clean else EXIT_FAILED


def _says_what_to_give(error: Exception) -> bool:
    from packpass.leaks.records import NothingToCompare

    return isinstance(error, NothingToCompare)


def _compile_keywords(arguments: argparse.Namespace) -> dict[str, Any]:
    options = dict(_option(entry) for entry in arguments.option)
    if options and arguments.mode:
        names = ", ".join(f"PACKPASS_{name[len(PREFIX) :].upper()}" for name in options if name.startswith(PREFIX))
        hint = f"; packpass's options can come from the environment instead ({names})" if names else ""
        raise UsageError(f"torch.compile takes either --mode or --option, not both{hint}")
    keywords: dict[str, Any] = {}
    if options:
        keywords["options"] = options
    if arguments.mode:
        keywords["mode"] = arguments.mode
    if arguments.fullgraph:
        keywords["fullgraph"] = True
    if arguments.dynamic:
        keywords["dynamic"] = arguments.dynamic == "true"
    try:
        Options.from_dict(options)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    return keywords


def _option(entry: str) -> tuple[str, Any]:
    key, equals, text = entry.partition("=")
    if not equals or not key:
        raise UsageError(f"--option {entry!r}: must be KEY=VALUE")
    if key in {field.name for field in dataclasses.fields(Options)}:
        key = PREFIX + key
    try:
        if key.startswith(PREFIX):
            return key, parse(key[len(PREFIX) :], text, key)
        return key, ast.literal_eval(text)
    except SyntaxError:
        return key, text
    except ValueError as error:
        if key.startswith(PREFIX):
            raise UsageError(str(error)) from None
        return key, text


def load(target: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Import ``MODULE:CALLABLE`` (a dotted module or a file ``.py``), call it, check that it made a model and
    arguments."""
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"{target!r}: must be MODULE:CALLABLE, for example example:make or path/to/example.py:make")
    made: Any = _import(where)
    for part in name.split("."):
        if not hasattr(made, part):
            public = [n for n, value in vars(made).items() if callable(value) and not n.startswith("_")]
            raise UsageError(f"{where} has no {name!r}; it has {', '.join(sorted(public)) or 'nothing to call'}")
        made = getattr(made, part)
    if not callable(made):
        raise UsageError(f"{target} is a {type(made).__name__}, not something to call")
    made = made()
    wanted = f"{target}() must return (model, args) or (model, args, kwargs)"
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        kind = f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__
        raise UsageError(f"{wanted}, got {kind}")
    model, args, kwargs = (*made, {})[:3]
    if not callable(model):
        raise UsageError(f"{wanted}; the model is a {type(model).__name__}, which cannot be called")
    if not isinstance(args, (tuple, list)):
        raise UsageError(f"{wanted}; args is a {type(args).__name__}, not a tuple: write (model, (x, cu_seqlens))")
    if not isinstance(kwargs, dict):
        raise UsageError(f"{wanted}; kwargs is a {type(kwargs).__name__}, not a dict")
    return model, tuple(args), kwargs


def _import(where: str) -> Any:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; the console script does not
    if where.endswith(".py"):
        if not os.path.isfile(where):
            raise UsageError(f"no file {where}")
        name = os.path.splitext(os.path.basename(where))[0]
        sys.path.insert(0, os.path.dirname(os.path.abspath(where)))
        spec = importlib.util.spec_from_file_location(name, where)
        if spec is None or spec.loader is None:
            raise UsageError(f"{where} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name and (where == error.name or where.startswith(f"{error.name}.")):
            raise UsageError(f"no module {error.name!r} (looked in the working directory and on sys.path)") from None
        raise UsageError(f"{where} imports {error.name!r}, which is not installed") from None


def _failed(error: Exception) -> int:
    import traceback

    traceback.print_exception(error)
    return EXIT_FAILED


def _print(text: str, json_text: str, json_file: str | None) -> None:
    if json_file == "-":
        print(json_text)
        return
    print(text)
    if json_file:
        _write(json_file, lambda path: _save(path, json_text))


def _save(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _write(path: str, write: Any) -> None:
    try:
        write(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    print(f"wrote {path}", file=sys.stderr)
