"""``python -m packpass doctor``: is everything here that packpass relies on, and what is switched on."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import os
import platform
import textwrap
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from packpass._options import ENV_PREFIX, Options, from_environment
from packpass.decisions.codes import CODES
from packpass.engine.versions import CompatibilityWarning, torch_support
from packpass.reports.render import text_table

if TYPE_CHECKING:
    from packpass.capture import HookState
    from packpass.cli.canaries import Canary, Outcome

WIDTH = 100
"""Characters in a line of the text."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of the diagnosis. ``state`` is ok, on, off, unproven, skipped, missing, note or empty, or ``broken``,
    which alone makes the doctor fail."""

    section: str
    name: str
    state: str
    detail: str
    seconds: float | None = None


def diagnose(canaries: bool = True) -> list[Check]:
    """Every check, in the order of the printout. Never raises: what cannot be looked at is reported as broken.

    Args:
        canaries: compile small programs in a process of their own; without it no hook group is shown as on.
    """
    sections: list[tuple[str, Callable[[], list[Check]]]] = [
        ("versions", _versions),
        ("capture hooks", lambda: _hooks(canaries)),
        ("passes", _passes),
        ("ops", _ops),
        ("devices", _devices),
        ("options", _options),
    ]
    checks: list[Check] = []
    for section, look in sections:
        try:
            checks += look()
        except Exception as error:
            checks.append(Check(section, section, "broken", f"{type(error).__name__}: {error}"))
    return checks


def healthy(checks: list[Check]) -> bool:
    return all(check.state != "broken" for check in checks)


def diagnosis_text(checks: list[Check]) -> str:
    """The diagnosis for a terminal, one table per section."""
    parts = []
    for section in dict.fromkeys(check.section for check in checks):
        rows = [_row(check) for check in checks if check.section == section]
        parts += [text_table([section, "state", ""], rows), ""]
    broken = [check.name for check in checks if check.state == "broken"]
    verdict = "packpass is ready" if not broken else f"broken: {', '.join(broken)}"
    return "\n".join([*parts, verdict])


def _row(check: Check) -> list[str]:
    detail = check.detail if check.seconds is None else f"{check.detail} ({check.seconds:.1f} s)"
    return [check.name, check.state, textwrap.fill(detail, WIDTH, break_long_words=False, break_on_hyphens=False)]


def diagnosis_json(checks: list[Check]) -> str:
    return json.dumps({"ok": healthy(checks), "checks": [dataclasses.asdict(check) for check in checks]}, indent=2)


def codes_text() -> str:
    """The codes of refusals as a table."""
    return text_table(["code", "meaning"], [[code, meaning] for code, meaning in CODES.items()])


def _versions() -> list[Check]:
    import torch

    from packpass import __version__

    state, detail = torch_support(torch.__version__)
    checks = [
        Check("versions", "packpass", "ok", __version__),
        Check("versions", "python", "ok", platform.python_version()),
        Check("versions", "torch", state, f"{torch.__version__}: {detail}"),
    ]
    for name, missing in (
        ("triton", "needed for CUDA only"),
        ("tabulate", "needed for tables"),
        ("matplotlib", "needed for plots only"),
    ):
        try:
            checks.append(Check("versions", name, "ok", importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            checks.append(Check("versions", name, "missing", missing))
    return checks


def _hooks(canaries: bool) -> list[Check]:
    """Hook groups and canaries: what is installed, and whether it does anything."""
    with warnings.catch_warnings():  # what does not fit is in the table
        warnings.simplefilter("ignore", CompatibilityWarning)
        from packpass.engine.backend import capture  # the hooks are installed with the backend

        states = {hook.name: hook for hook in capture.hook_states()}
    if not canaries:
        return [_group_check(hook, *_unproven(hook)) for hook in states.values()]
    from packpass.cli.canaries import CANARIES
    from packpass.cli.canary_process import outcomes

    found = outcomes([canary.name for canary in CANARIES])
    verdicts: dict[str, tuple[str, str]] = {}
    for hook in states.values():
        verdicts[hook.name] = _verdict(hook, states, verdicts, CANARIES, found)
    groups = [_group_check(hook, *verdicts[hook.name]) for hook in states.values()]
    return groups + [_canary_check(canary, found[canary.name], states) for canary in CANARIES]


def _group_check(hook: HookState, state: str, why: str) -> Check:
    from packpass.engine.missing import consequence

    detail = hook.purpose + (f" ({why})" if why else "")
    if state in ("off", "broken"):
        detail += f". Without it: {consequence(hook.name)}"
    return Check("capture hooks", hook.name, state, detail)


def _unproven(hook: HookState) -> tuple[str, str]:
    return ("unproven", "installed; no canary was compiled") if hook.state == "on" else (hook.state, hook.reason)


def _verdict(
    hook: HookState,
    states: Mapping[str, HookState],
    verdicts: Mapping[str, tuple[str, str]],
    canaries: tuple[Canary, ...],
    found: Mapping[str, Outcome],
) -> tuple[str, str]:
    """State and reason of a group, given those before it: "on" only if what it is for has been seen to happen."""
    if hook.state != "on":
        return hook.state, hook.reason
    mine = [c for c in canaries if hook.name in c.proves]
    usable = [c for c in mine if all(states[n].state == "on" for n in (*c.proves, *c.needs) if n in states)]
    failed = [c for c in usable if found[c.name].state == "failed"]
    proven = [c for c in usable if found[c.name].state == "ok"]
    dead = [n for c in mine for n in c.needs if n in states and verdicts.get(n, ("on", ""))[0] != "on"]
    if dead:
        return "unproven", f"installed; needs {dead[0]!r}, which is {verdicts[dead[0]][0]}"
    if failed:
        return "broken", f"installed and does nothing for: {', '.join(c.name for c in failed)}; see the canaries"
    return ("on", "") if proven else ("unproven", "installed; no canary that needs it could run")


def _canary_check(canary: Canary, outcome: Outcome, states: Mapping[str, HookState]) -> Check:
    """A canary that is not rewritten because the user switched a group off is not broken, if its results are right."""
    groups = [states[name] for name in ("gate", *canary.proves, *canary.needs) if name in states]
    off = any(group.state == "off" for group in groups) and not any(group.state == "broken" for group in groups)
    state = {"ok": "ok", "skipped": "skipped"}.get(outcome.state, "off" if off and outcome.right else "broken")
    return Check("canaries", canary.name, state, outcome.detail, outcome.seconds)


def _passes() -> list[Check]:
    from packpass._passes import PASSES
    from packpass.engine.passes import module_of

    settings = Options.from_dict()[0]
    checks = []
    for p in PASSES:
        summary = (module_of(p).__doc__ or "").strip().split("\n")[0]
        checks.append(Check("passes", p.name, "on" if settings.runs(p.name) else "off", summary))
    return checks


def _ops() -> list[Check]:
    from packpass import _compat

    importlib.import_module("packpass.ops")
    return [Check("ops", name, "ok", "") for name in _compat.registered_ops("packpass")]


def _devices() -> list[Check]:
    import torch

    checks = [Check("devices", "cpu", "ok", f"{platform.machine()}, {torch.get_num_threads()} threads")]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(index)
            checks.append(
                Check("devices", f"cuda:{index}", "ok", f"{torch.cuda.get_device_name(index)}, sm_{major}{minor}")
            )
    else:
        checks.append(Check("devices", "cuda", "note", "none"))
    return checks


def _options() -> list[Check]:
    given = from_environment()
    options = Options.from_dict()[0]
    checks = []
    for field in dataclasses.fields(options):
        source = f"from {ENV_PREFIX}{field.name.upper()}" if field.name in given else "default"
        checks.append(Check("options", f"packpass.{field.name}", "", f"{getattr(options, field.name)!r} ({source})"))
    known = {ENV_PREFIX + field.name.upper() for field in dataclasses.fields(options)}
    for variable in sorted(name for name in os.environ if name.startswith(ENV_PREFIX) and name not in known):
        checks.append(
            Check("options", variable, "note", "this environment variable is not an option and has no effect")
        )
    return checks
