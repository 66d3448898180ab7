"""``python -m packpass doctor``: is everything here that packpass relies on, and what is switched on."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Callable

from packpass._codes import CODES
from packpass._options import ENV_PREFIX, Options, from_environment
from packpass._render import text_table

OLDEST, TESTED = (2, 11), (2, 13)


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of the diagnosis. ``state`` is ok, on, off, missing, note or empty, or ``broken``, which alone makes the
    doctor fail."""

    section: str
    name: str
    state: str
    detail: str


def diagnose() -> list[Check]:
    """Every check, in the order of the printout. Never raises: what cannot be looked at is reported as broken."""
    sections: list[tuple[str, Callable[[], list[Check]]]] = [
        ("versions", _versions),
        ("capture hooks", _hooks),
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
        rows = [[check.name, check.state, check.detail] for check in checks if check.section == section]
        parts += [text_table([section, "state", ""], rows), ""]
    broken = [check.name for check in checks if check.state == "broken"]
    verdict = "packpass is ready" if not broken else f"broken: {', '.join(broken)}"
    return "\n".join([*parts, verdict])


def diagnosis_json(checks: list[Check]) -> str:
    return json.dumps({"ok": healthy(checks), "checks": [dataclasses.asdict(check) for check in checks]}, indent=2)


def codes_text() -> str:
    """The codes of refusals as a table."""
    return text_table(["code", "meaning"], [[code, meaning] for code, meaning in CODES.items()])


def torch_support(version: str) -> tuple[str, str]:
    """Whether packpass supports this version of torch, and the sentence that says so."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return "note", f"cannot read the version {version!r}"
    this = (int(numbers[1]), int(numbers[2]))
    if this < OLDEST:
        return "broken", f"packpass needs torch >= {OLDEST[0]}.{OLDEST[1]}"
    if this == TESTED:
        return "ok", "the version the tests run on"
    return "ok", f"supported; the tests run on {TESTED[0]}.{TESTED[1]}, the hooks below test themselves"


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


def _hooks() -> list[Check]:
    from packpass._backend import capture

    checks = []
    for hook in capture.hook_states():
        detail = hook.purpose + (f" ({hook.reason})" if hook.reason else "")
        checks.append(Check("capture hooks", hook.name, hook.state, detail))
    return checks


def _passes() -> list[Check]:
    from packpass._passes import load

    disabled = Options.from_dict()[0].disable
    checks = []
    for module in load().ORDER:
        summary = (module.__doc__ or "").strip().split("\n")[0]
        checks.append(Check("passes", module.NAME, "off" if module.NAME in disabled else "on", summary))
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
