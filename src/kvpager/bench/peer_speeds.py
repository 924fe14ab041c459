"""Tokens a second by workload, of kvpager and of each peer, out of a report: as a table and as a picture (SVG).

The picture is for pages that show it as an image: it follows the reader's light or dark scheme by itself, and says its
numbers in words. Each workload has a scale of its own, so nothing is lost beside a faster one. What else is measured of
each engine is a table of its own. Knows figures named peer_MEASURE/ENGINE; no engine.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from kvpager.bench.recorded import Report, number_text

OURS = "kvpager"
_FIGURE = re.compile(
    r"peer_(?P<workload>.+)_(?P<measure>tokens_per_second|tokens_per_second_until_stopped|stopped_at)/(?P<engine>.+)"
)
_STOPPED = (
    "In brackets: the engine was stopped after that part of the tokens, for another one had run all of them in less "
    "time. The number is its pace until then, over prompts and answers alike, as tokens of answers a second."
)
_TITLES = {
    "1x128": "1 stream, 128 + 128 tokens",
    "32x128": "32 requests of 128 + 128",
    "128x128": "128 requests of 128 + 128",
    "16x2048": "16 requests of 2,048 + 64",
    "shared_prefix": "64 questions behind 2,000 common tokens",
    "conversations": "conversations of several turns",
    "azure": "200 requests, Azure's lengths",
}
_MEASURES = {
    "peer_prefix_hit_ttft_p50": "first token behind a known prompt, ms",
    "peer_peak_memory": "most memory, MiB",
    "peer_requests_in_64_mib": "requests of 128 + 32 tokens at once in 64 MiB of KV",
    "peer_greedy_agreement": "tokens before an answer first differs from Hugging Face's greedy ones in float32, %",
}
_COLUMN, _LABEL, _VALUE, _ROW, _GAP, _HEAD = 440, 168, 52, 17, 18, 22  # pixels
_COLUMNS = 2

_STYLE = """
svg { --back: #ffffff; --ink: #1a1d21; --soft: #5b636d; --ours: #0072b2; --peer: #b3bac2; }
@media (prefers-color-scheme: dark) {
  svg { --back: #14171a; --ink: #eceff2; --soft: #a3acb6; --ours: #56b4e9; --peer: #4a535d; } }
text, text.peer { font: 12px system-ui, sans-serif; fill: var(--soft); } .head { font-weight: 600; fill: var(--ink); }
.back { fill: var(--back); } rect.peer { fill: var(--peer); } rect.ours { fill: var(--ours); }
text.ours { font-weight: 600; fill: var(--ink); }
"""


@dataclass(frozen=True, slots=True)
class UntilStopped:
    """What an engine did before it was stopped. ``share``: of all tokens."""

    share: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Speeds:
    """One workload: tokens a second by engine, ours first, then the peers from the fastest on. ``share``: of its
    requests that were run. ``stopped``: engines that have no speed, for they did not come to its end."""

    workload: str
    tokens_per_second: Mapping[str, float]
    share: float = 1.0
    stopped: Mapping[str, UntilStopped] = field(default_factory=dict)

    @property
    def title(self) -> str:
        title = _TITLES.get(self.workload, self.workload)
        return title if self.share == 1 else f"{title} ({self.share:.0%} of them)"

    @property
    def best_peer(self) -> str | None:
        peers = [engine for engine in self.tokens_per_second if engine != OURS]
        return max(peers, key=self.tokens_per_second.__getitem__, default=None)

    @property
    def over_best_peer(self) -> float | None:
        """None where one of the two was not measured."""
        if self.best_peer is None or OURS not in self.tokens_per_second:
            return None
        return self.tokens_per_second[OURS] / self.tokens_per_second[self.best_peer]


def speeds_of(reports: Sequence[Report]) -> list[Speeds]:
    """In the order of the figures. Engines without a speed for a workload are left out there."""
    whole: dict[str, dict[str, float]] = {}
    until: dict[str, dict[str, float]] = {}
    stopped_at: dict[tuple[str, str], float] = {}
    shares: dict[str, float] = {}
    for report in reports:
        shares.update(report.shares)
        for figure in report.figures:
            if match := _FIGURE.fullmatch(figure.name):
                workload, engine = match["workload"], match["engine"]
                if match["measure"] == "stopped_at":
                    stopped_at[workload, engine] = figure.value
                elif match["measure"] != "tokens_per_second":
                    until.setdefault(workload, {})[engine] = figure.value
                elif figure.value > 0:
                    whole.setdefault(workload, {})[engine] = figure.value
    return [
        Speeds(
            workload,
            dict(sorted(each.items(), key=_ours_first)),
            shares.get(workload, 1.0),
            {engine: UntilStopped(stopped_at[workload, engine], rate) for engine, rate in stopped.items()},
        )
        for workload, each in whole.items()
        for stopped in [until.get(workload, {})]
    ]


def _ours_first(item: tuple[str, float]) -> tuple[bool, float]:
    return item[0] != OURS, -item[1]


def engines_of(speeds: Sequence[Speeds]) -> list[str]:
    """Those that came to the end of some workload first."""
    whole = (engine for each in speeds for engine in each.tokens_per_second)
    return list(dict.fromkeys((*whole, *(engine for each in speeds for engine in each.stopped))))


def speeds_table(speeds: Sequence[Speeds]) -> str:
    """Markdown: the fastest of a workload is bold, and a workload where a peer is faster says so. A line behind it says
    what numbers in brackets are, where there are any."""
    engines = engines_of(speeds)
    lines = [
        f"| tokens/s | {' | '.join(engines)} | ours over the best peer's |",
        f"|---{'|---' * len(engines)}|---|",
    ]
    for each in speeds:
        fastest = max(each.tokens_per_second, key=each.tokens_per_second.__getitem__)
        cells = [f"**{_cell(each, engine)}**" if engine == fastest else _cell(each, engine) for engine in engines]
        lines.append(f"| {each.title} | {' | '.join(cells)} | {_standing(each)} |")
    if any(each.stopped for each in speeds):
        lines += ["", _STOPPED]
    return "\n".join(lines)


def _cell(speeds: Speeds, engine: str) -> str:
    if engine in speeds.tokens_per_second:
        return number_text(speeds.tokens_per_second[engine])
    if (until := speeds.stopped.get(engine)) is not None:
        return f"({number_text(until.tokens_per_second)} for {until.share:.0%})"
    return "-"


def measures_table(reports: Sequence[Report], engines: Sequence[str]) -> str:
    """Markdown: what else is known of these engines. Empty where nothing is."""
    found: dict[str, dict[str, float]] = {}
    for report in reports:
        for figure in report.figures:
            name, _, engine = figure.name.partition("/")
            if name in _MEASURES and engine:
                found.setdefault(name, {})[engine] = figure.value * (100 if figure.unit == "share" else 1)
    if not found:
        return ""
    lines = [f"| | {' | '.join(engines)} |", f"|---{'|---' * len(engines)}|"]
    for name, title in _MEASURES.items():
        if name in found:
            cells = [number_text(found[name][engine]) if engine in found[name] else "-" for engine in engines]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _standing(each: Speeds) -> str:
    over = each.over_best_peer
    if over is None:
        return "-"
    return f"{over:.2f}" if over >= 1 else f"{over:.2f}: **{each.best_peer} is faster**"


def speeds_picture(speeds: Sequence[Speeds]) -> str:
    """SVG: a block of bars a workload, two blocks a row. REQUIRES: one workload at least."""
    parts: list[str] = []
    top = 0.0
    for row in (speeds[at : at + _COLUMNS] for at in range(0, len(speeds), _COLUMNS)):
        for column, each in enumerate(row):
            parts += _block(each, column * _COLUMN + _GAP, top + _GAP)
        top += _GAP + _HEAD + _ROW * max(len(each.tokens_per_second) for each in row)
    parts.append(
        f'<text x="{_GAP}" y="{top + _GAP + 12:.0f}">tokens a second; each workload has a scale of its own</text>'
    )
    width, height = _COLUMNS * _COLUMN, top + _GAP + _HEAD
    said = "; ".join(f"{each.title}: {_said(each)}" for each in speeds)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" '
        f'height="{height:.0f}" role="img" aria-labelledby="title said">\n<title id="title">Tokens a second by '
        f'workload, kvpager and its peers</title>\n<desc id="said">{escape(said)}</desc>\n<style>{_STYLE}</style>\n'
        f'<rect class="back" width="{width}" height="{height:.0f}"/>\n{body}\n</svg>\n'
    )


def _said(each: Speeds) -> str:
    return ", ".join(f"{engine} {number_text(value)}" for engine, value in each.tokens_per_second.items())


def _block(each: Speeds, left: float, top: float) -> list[str]:
    longest = max(each.tokens_per_second.values())
    room = _COLUMN - _GAP - _LABEL - _VALUE
    parts = [f'<text class="head" x="{left}" y="{top + 12:.0f}">{escape(each.title)}</text>']
    for number, (engine, value) in enumerate(each.tokens_per_second.items()):
        y = top + _HEAD + number * _ROW
        style = "ours" if engine == OURS else "peer"
        bar = room * value / longest
        parts += [
            f'<text class="{style}" x="{left}" y="{y + 11:.0f}">{escape(engine)}</text>',
            f'<rect class="{style}" x="{left + _LABEL}" y="{y + 1:.0f}" width="{bar:.1f}" height="12" rx="2"/>',
            f'<text class="{style}" x="{left + _LABEL + bar + 6:.1f}" y="{y + 11:.0f}">{number_text(value)}</text>',
        ]
    return parts
