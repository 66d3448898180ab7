"""What the report starts with: a table and a plot of what packpass gains on real workloads."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from packpass.measuring.compare_render import bytes_text
from packpass.reports.render import html_table, text_table
from perf.results import CaseResult, Figures, Gain

HEADERS = ["workload", "faster than eager", "than torch.compile", "graphs", "collectives", "peak memory", "error"]
ORDER = (
    "megatron-core rolls",
    "MTP step",
    "vision tower",
    "RL loss",
    "padded model",
    "exchange layer",
    "real text",
)
WIDTH = 44
"""Characters of the longest bar in a terminal."""

# Name, bar and figure have columns of their own, so that nothing is wider than a phone.
STYLE = """
.gains { list-style: none; padding: 0; max-width: 46rem; } .gains li { margin: .7rem 0; break-inside: avoid; }
.gains .bar { display: grid; grid-template-columns: 7em minmax(0, 1fr) 7.5em; gap: .5rem; align-items: center;
font-size: .85rem; margin: .15rem 0; } .gains .track { position: relative; height: 1.1rem; background: var(--stripe); }
.gains .track i { position: absolute; top: 0; bottom: 0; background: var(--quiet); }
.gains .track i.ours { background: var(--accent); } .gains .track b { position: absolute; top: 0; bottom: 0;
width: 1px; background: var(--text); }
"""


def gains_of(results: Sequence[CaseResult]) -> list[Gain]:
    """All gains, those that people ask for first in front; one workload on several devices is next to itself."""
    found = [gain for result in results for gain in result.gains]
    place = {name: i for i, name in enumerate(ORDER)}
    return sorted(found, key=lambda gain: place.get(gain.workload, len(ORDER)))


def gain_rows(gains: Sequence[Gain]) -> list[list[str]]:
    several = len({gain.device for gain in gains}) > 1
    return [_row(gain, several) for gain in gains]


def _row(gain: Gain, several: bool) -> list[str]:
    eager, stock, ours = gain.eager, gain.stock, gain.packpass
    return [
        gain.workload + (f" ({gain.device})" if several else ""),
        _faster(gain, eager),
        _faster(gain, stock),
        _change(_number(stock.graphs), _number(ours.graphs)),
        _change(_number(eager.collectives), _number(ours.collectives)),
        _change(bytes_text(eager.peak_bytes), bytes_text(ours.peak_bytes)),
        _change(_error(eager.error), _error(ours.error)),
    ]


def _faster(gain: Gain, over: Figures) -> str:
    """``12.3x ±4%``; the reason where one of the two was not timed."""
    gained = gain.faster(over)
    if gained is None:
        return "not timed" if gain.packpass.note or over.note else ""
    spread = math.hypot(gain.packpass.spread, over.spread)
    return f"{gained:.3g}x ±{spread:.0%}"


def _change(before: str, after: str) -> str:
    return f"{before} -> {after}" if before and after and before != after else after or before


def _number(count: int | None) -> str:
    return "" if count is None else str(count)


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.1g}" if error else "0"


def remarks(gains: Sequence[Gain]) -> list[str]:
    """What the columns mean, and what each workload is."""
    lines = [
        'Times as fast as eager and stock torch.compile, measured side by side; "±" is half the interquartile range. '
        "Graphs: stock torch.compile -> packpass (0: compiled nothing, ran eagerly). Collectives of a step of one "
        "rank, peak memory and error: eager -> packpass."
    ]
    for gain in gains:
        notes = [f"{name}: {figures.note}" for name, figures in _ways(gain) if figures.note]
        lines.append("; ".join([f"{gain.workload}: {gain.detail}; error: {gain.error_of}", *notes]))
    return list(dict.fromkeys(lines))


def sentence(gains: Sequence[Gain]) -> str:
    """The whole in one line."""
    factors = sorted(gained for gain in gains if (gained := gain.faster(gain.eager)) is not None)
    if not factors:
        return ""
    middle = (
        factors[len(factors) // 2]
        if len(factors) % 2
        else math.sqrt(factors[len(factors) // 2 - 1] * factors[len(factors) // 2])
    )
    return (
        f"On {len(factors)} real workloads packpass is {factors[0]:.3g} to {factors[-1]:.3g} times as fast as eager, "
        f"{middle:.3g} times in the middle."
    )


# === The plot ===================================================================================================


def _ways(gain: Gain) -> list[tuple[str, Figures]]:
    return [("eager", gain.eager), ("torch.compile", gain.stock), ("packpass", gain.packpass)]


def _bars(gain: Gain) -> list[tuple[str, float | None, float]]:
    """Name, times as fast as eager, spread."""
    bars = []
    for name, figures in _ways(gain)[1:]:
        speed = gain.eager.ratio / figures.ratio if gain.eager.ratio and figures.ratio else None
        bars.append((name, speed, figures.spread))
    return bars


def _ends(gains: Sequence[Gain]) -> tuple[float, float]:
    """Logarithms of the least and the largest of the axis, 1 among them."""
    values = [math.log10(speed) for gain in gains for _, speed, _ in _bars(gain) if speed]
    low, high = min([0.0, *values]), max([0.0, *values])
    return (low - 0.15 if low else low, high + 0.05) if high > low else (low, low + 1)


def gains_text(gains: Sequence[Gain]) -> str:
    """Bars for a terminal: times as fast as eager, on a logarithmic axis."""
    if not gains:
        return ""
    low, high = _ends(gains)
    lines = ["times as fast as eager (logarithmic; | is eager)"]
    several = len({gain.device for gain in gains}) > 1
    for gain in gains:
        name = gain.workload + (f" ({gain.device})" if several else "")
        for way, speed, _ in _bars(gain):
            bar = _text_bar(speed, low, high) if speed else f"{' ' * _column(0.0, low, high)}| not timed"
            lines.append(f"{name:28.28}{way:14}{bar}")
            name = ""
    return "\n".join(lines)


def _column(value: float, low: float, high: float) -> int:
    return round((value - low) / (high - low) * WIDTH)


def _text_bar(speed: float, low: float, high: float) -> str:
    one, at = _column(0.0, low, high), _column(math.log10(speed), low, high)
    if at >= one:
        return " " * one + "|" + "█" * (at - one) + f" {speed:.3g}x"
    return " " * at + "█" * (one - at) + f"| {speed:.3g}x"


def gains_html(gains: Sequence[Gain]) -> str:
    """Table and plot for the page. The bars are plain HTML: they fit every width, and take the page's colours."""
    if not gains:
        return ""
    low, high = _ends(gains)
    several = len({gain.device for gain in gains}) > 1
    items = []
    for gain in gains:
        name = html.escape(gain.workload + (f" ({gain.device})" if several else ""))
        bars = "".join(_html_bar(*bar, low, high) for bar in _bars(gain))
        items.append(f"<li><strong>{name}</strong>{bars}</li>")
    return (
        f"<style>{STYLE}</style><p><strong>{html.escape(sentence(gains))}</strong></p>"
        + html_table(HEADERS, gain_rows(gains))
        + "<h3>Times as fast as eager (logarithmic; the line is eager)</h3>"
        + f'<ul class="gains">{"".join(items)}</ul>'
        + "".join(f"<p><small>{html.escape(line)}</small></p>" for line in remarks(gains))
    )


def _html_bar(name: str, speed: float | None, spread: float, low: float, high: float) -> str:
    def at(value: float) -> float:
        return 100 * (value - low) / (high - low)

    one = at(0.0)
    line = f'<b style="left:{one:.1f}%"></b>'
    if speed is None:
        track, figure = line, "not timed"
    else:
        end = at(math.log10(speed))
        kind = ' class="ours"' if name == "packpass" else ""
        track = f'<i{kind} style="left:{min(one, end):.1f}%;width:{abs(end - one):.1f}%"></i>{line}'
        figure = f"{speed:.3g}x ±{spread:.0%}"
    return (
        f'<div class="bar"><span>{html.escape(name)}</span><div class="track">{track}</div><span>{figure}</span></div>'
    )


def headline_text(gains: Sequence[Gain]) -> str:
    """Table and plot for the terminal."""
    if not gains:
        return ""
    table = text_table(HEADERS, gain_rows(gains))
    return "\n".join(["== What is gained", sentence(gains), "", table, "", gains_text(gains), "", *remarks(gains), ""])
