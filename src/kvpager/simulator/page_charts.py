"""The charts of the page, as SVG made by hand: every value is in the file, and shows where the pointer or the keyboard
is, without a script. Knows numbers, names and colours by class; no replay.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 580, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 92, 26, 30
_LABEL_GAP = 15  # between two names at the ends of lines
_TICK_GAP = 52  # between two numbers on an axis
_BAR = 26


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: ``points`` are (x, y, what to show there). ``style``: a class of the page's stylesheet. A line without
    a name, or a point without a text, is drawn plainly."""

    name: str
    style: str
    points: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of stacked parts: (name of the part, its class, its value)."""

    name: str
    parts: tuple[tuple[str, str, float], ...]


def curves_chart(
    title: str, curves: Sequence[Curve], ticks: Sequence[tuple[float, str]], here: tuple[float, str] | None
) -> str:
    """Shares over capacities, these on a logarithmic axis. ``ticks``: (capacity, label). ``here``: a marked one."""
    xs = [x for curve in curves for x, _, _ in curve.points] + ([here[0]] if here else [])
    low, high = math.log(min(xs)), math.log(max(xs))
    top = _nice_top(max(y for curve in curves for _, y, _ in curve.points))

    def place(x: float, y: float) -> tuple[float, float]:
        share = (math.log(x) - low) / (high - low) if high > low else 0.5
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT), _y(y / top)

    parts = [_grid(top)]
    parts += _x_ticks([(place(x, 0)[0], label) for x, label in ticks])
    if here is not None:
        at = place(here[0], 0)[0]
        parts.append(f'<line class="here" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
        parts.append(
            f'<text class="heretext" x="{at:.1f}" y="{_TOP - 10}" text-anchor="middle">{escape(here[1])}</text>'
        )
    for curve in curves:
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (place(x, y) for x, y, _ in curve.points))
        parts.append(f'<polyline class="line {curve.style}" points="{path}"/>')
    for curve in curves:
        parts += [_point(*place(x, y), curve.style, tip) for x, y, tip in curve.points if tip]
    ends = [(place(*curve.points[-1][:2]), curve) for curve in curves if curve.name]
    parts += _end_labels([(x, y, curve.name, curve.style) for (x, y), curve in ends])
    return _svg(title, parts, HEIGHT)


def bars_chart(title: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars of shares, each of stacked parts with the total behind it."""
    top = _nice_top(max(sum(value for _, _, value in bar.parts) for bar in bars))
    height = _TOP + len(bars) * (_BAR + 12) + _BOTTOM
    span = WIDTH - _LEFT - _RIGHT - 30
    left = _LEFT + 30
    parts = []
    for tick in _ticks(top):
        x = left + span * tick / top
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - _BOTTOM}"/>')
        parts.append(
            f'<text class="axis" x="{x:.1f}" y="{height - _BOTTOM + 18}" text-anchor="middle">{tick:.0%}</text>'
        )
    for row, bar in enumerate(bars):
        y, x = _TOP + row * (_BAR + 12) + 6, float(left)
        middle = y + _BAR / 2 + 4
        parts.append(f'<text class="name" x="{left - 8}" y="{middle:.1f}" text-anchor="end">{escape(bar.name)}</text>')
        for name, style, value in bar.parts:
            width = span * value / top
            tip = f"{bar.name}, {name}: {value:.1%}"
            parts.append(
                f'<g class="mark" tabindex="0"><rect class="fill {style}" x="{x:.1f}" y="{y}" width="{width:.1f}" '
                f'height="{_BAR}"><title>{escape(tip)}</title></rect></g>'
            )
            x += width
        total = sum(value for _, _, value in bar.parts)
        parts.append(f'<text class="value" x="{x + 6:.1f}" y="{middle:.1f}">{total:.1%}</text>')
    return _svg(title, parts, height)


def histogram_chart(
    title: str, labels: Sequence[str], series: Sequence[tuple[str, str, Sequence[int]]], first_last: tuple[int, int]
) -> str:
    """Series of counts over the same classes as shares of their sums, side by side. ``first_last``: classes to show."""
    first, last = first_last
    width, height = WIDTH / 2, HEIGHT * 0.62
    shares = [[count / max(1, sum(counts)) for count in counts] for _, _, counts in series]
    top = _nice_top(max(max(each) for each in shares))
    span = width - _LEFT - 12
    slot = span / (last - first + 1)

    def rise(share: float) -> float:
        return (height - _TOP - _BOTTOM) * share / top

    parts = []
    for tick in _ticks(top):
        y = height - _BOTTOM - rise(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{width - 12:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="axis" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.0%}</text>')
    thick = slot * 0.8 / max(1, len(series))
    for number, ((name, style, counts), each) in enumerate(zip(series, shares, strict=True)):
        for at in range(first, last + 1):
            x = _LEFT + (at - first) * slot + slot * 0.1 + number * thick
            tip = f"{labels[at]}: {each[at]:.1%} of {name} ({counts[at]:,})"
            parts.append(
                f'<g class="mark" tabindex="0"><rect class="fill {style}" x="{x:.1f}" '
                f'y="{height - _BOTTOM - rise(each[at]):.1f}" width="{thick:.1f}" height="{rise(each[at]):.1f}">'
                f"<title>{escape(tip)}</title></rect></g>"
            )
    ticks = [(_LEFT + (at - first + 0.5) * slot, labels[at]) for at in range(first, last + 1)]
    parts += _x_ticks(ticks, height)
    return _svg(title, parts, height, width)


# -- parts of charts -----------------------------------------------------------------------------------------------


def _svg(title: str, parts: Sequence[str], height: float, width: float = WIDTH) -> str:
    body = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n{body}\n</svg>"
    )


def _y(share: float) -> float:
    return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)


def _nice_top(value: float) -> float:
    """A round share at or above ``value``."""
    steps = (0.02, 0.04, 0.08, 0.12, 0.2, 0.4, 0.6, 0.8, 1.0)  # a quarter of each is round too
    return next((step for step in steps if step >= value), 1.0)


def _ticks(top: float) -> list[float]:
    return [top * part / 4 for part in range(5)]


def _grid(top: float) -> str:
    lines = []
    for tick in _ticks(top):
        y = _y(tick / top)
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        text = f"{tick:.1%}" if top < 0.04 else f"{tick:.0%}"
        lines.append(f'<text class="axis" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    return "\n".join(lines)


def _x_ticks(ticks: Sequence[tuple[float, str]], height: float = HEIGHT) -> list[str]:
    """Labels under an axis, those left out that would run into the one before."""
    found, free_from = [], -math.inf
    for x, label in ticks:
        if x >= free_from:
            y = height - _BOTTOM + 18
            found.append(f'<text class="axis" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(label)}</text>')
            free_from = x + _TICK_GAP
    return found


def _point(x: float, y: float, style: str, tip: str) -> str:
    """A dot with a larger area around it that shows the value."""
    anchor, shift = ("end", -10) if x > WIDTH / 2 else ("start", 10)
    return (
        f'<g class="mark" tabindex="0"><circle class="area" cx="{x:.1f}" cy="{y:.1f}" r="13"/>'
        f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        f'<text class="tip" x="{x + shift:.1f}" y="{y - 10:.1f}" text-anchor="{anchor}">{escape(tip)}</text></g>'
    )


def _end_labels(ends: Sequence[tuple[float, float, str, str]]) -> list[str]:
    """Names beside the ends of lines, moved apart where they would cover each other."""
    found, free_from = [], -math.inf
    for x, y, name, style in sorted(ends, key=lambda end: end[1]):
        at = max(y, free_from)
        free_from = at + _LABEL_GAP
        found.append(f'<text class="name {style}" x="{x + 10:.1f}" y="{at + 4:.1f}">{escape(name)}</text>')
    return found
