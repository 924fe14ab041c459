"""Draws a frame of a running server with rich: tiers, block map, faults, requests, alerts. Knows no connection.

Each character of the map is two cells, one above the other; a cell is as many blocks as it takes to fit the terminal,
in the colour of what most of them are: a request's own, white where requests share, dim grey where cached, pale where
moving, dark where free.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kvpager.cli.palette import COLOURS, colour, printable
from kvpager.cli.top_lines import (
    alert_in_words,
    blocks_in_words,
    contiguous_in_words,
    faults_in_words,
    migrations_in_words,
    prefix_in_words,
)
from kvpager.config import format_size
from kvpager.memory.block import BlockState
from kvpager.metrics.block_view import BlockView
from kvpager.metrics.frames import Frame

_FREE, _CACHED, _MOVING, _SHARED, _NOBODYS = range(5)
_PAINTS = ("#2b2b2b", "#6c6c6c", "#b8b8b8", "#ffffff", "#808000", *COLOURS)
_LETTERS = ".:~#?" + "ABCDEFGHIJKL"  # for terminals without colour or block characters
_FIRST_OWNER = 5
_NOTHING = -1  # beyond the last cell
_MAP_ROWS = (4, 16)
_OTHER_ROWS = 22  # of the terminal, that the rest takes at most
_MOST_REQUESTS = 10
_RECENT_SECONDS = 3.0
_WIDEST = 4  # characters of a cell, where the pool is small
_SEVERITIES = {"critical": "bold white on red", "warning": "bold black on yellow"}

Recent = dict[tuple[str, str], int]  # pages by kind and tier


class LiveTop:
    """On the terminal's second screen, which leaves what was on the first alone."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, screen=True, auto_refresh=False, transient=True)
        self._latest: deque[Frame] = deque()

    def show(self, frame: Frame) -> None:
        self._latest.append(frame)
        while frame.time - self._latest[0].time > _RECENT_SECONDS:
            self._latest.popleft()
        self._live.update(TopView(frame, recent=recent_of(self._latest)), refresh=True)

    def lost(self, why: str) -> None:
        assert self._latest, "a server that never was there is not waited for"
        self._live.update(TopView(self._latest[-1], f"{why}; trying again"), refresh=True)

    def __enter__(self) -> "LiveTop":
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)


class TopView:
    """A frame as something that rich can print. ``trouble``: what is the matter, above all else. ``recent``: what
    happened lately, if not only what the frame says."""

    def __init__(self, frame: Frame, trouble: str = "", recent: Recent | None = None) -> None:
        self._frame, self._trouble = frame, trouble
        self._recent = recent_of([frame]) if recent is None else recent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = self._frame.figures
        height = options.height or options.size.height
        rows = min(_MAP_ROWS[1], max(_MAP_ROWS[0], height - _OTHER_ROWS))
        plain = options.ascii_only or console.color_system is None
        yield Group(
            _headline(now),
            *([Text(f" {printable(self._trouble)} ", style="bold white on red")] if self._trouble else []),
            *map(_alert, now["alerts"]),
            _tiers(now["tiers"]),
            Text(),
            *map_lines(self._frame.blocks, max(8, options.max_width - 2), rows, plain=plain),
            Text(f" {blocks_in_words(now['pool'])}", style="grey70", no_wrap=True),
            _figures(now, self._recent),
            _requests(now),
        )


def _alert(alert: dict[str, Any]) -> Text:
    return Text(f" {alert_in_words(alert)} ", style=_SEVERITIES.get(alert["severity"], "bold"))


def _headline(now: dict[str, Any]) -> RenderableType:
    line = Table.grid(expand=True)
    line.add_column(no_wrap=True, ratio=1)
    line.add_column(no_wrap=True, justify="right")
    rates = now["rates"]
    line.add_row(
        Text(f" {printable(now['model'], 60)}", style="bold"),
        Text(
            f"{now['running']} running  {now['waiting']} waiting  {rates['tokens_per_second']:.1f} tokens/s  "
            f"hit rate {rates['hit_rate']:.0%} ",
            style="bold",
        ),
    )
    return line


def _tiers(tiers: list[dict[str, Any]]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    for _ in range(5):
        table.add_column(no_wrap=True)
    for tier in tiers:
        capacity, used = tier["capacity_bytes"], tier["used_bytes"]
        bar: RenderableType = ProgressBar(total=capacity, completed=used, width=24) if capacity else Text("-" * 24)
        state = Text("") if tier["state"] == "ok" else Text(printable(tier["state"], 40), style="bold red")
        table.add_row(
            Text(f" {printable(tier['name'], 12)}"),
            bar,
            Text(f"{format_size(used)} of {format_size(capacity)}" if capacity else format_size(used)),
            Text(f"{tier['pages']} pages  {tier['hit_tokens']} hits  {tier['evicted']} dropped", style="grey70"),
            state,
        )
    return table


# -- the block map -------------------------------------------------------------------------------------------------


def map_lines(blocks: BlockView, columns: int, rows: int, *, plain: bool) -> list[Text]:
    """At most ``rows`` lines of ``columns`` characters. ``plain``: letters, one cell each."""
    rows_of_cells = rows if plain else 2 * rows
    each = max(1, -(-len(blocks) // (columns * rows_of_cells)))
    cells = paint_of_cells(blocks, each)
    width = max((w for w in range(2, _WIDEST + 1) if len(cells) <= rows * (columns // w)), default=1)
    in_row = columns // width
    padded = np.full(-(-len(cells) // (2 * in_row)) * 2 * in_row, _NOTHING)
    padded[: len(cells)] = cells
    grid = np.repeat(padded.reshape(-1, in_row), width, axis=1)
    if plain:
        shown = ["".join(_LETTERS[paint] for paint in row.tolist() if paint != _NOTHING) for row in grid]
        return [Text(f" {row}", no_wrap=True) for row in shown if row]
    return [_line(upper.tolist(), lower.tolist()) for upper, lower in zip(grid[::2], grid[1::2], strict=True)]


def _line(upper: list[int], lower: list[int]) -> Text:
    """Two rows of cells as one of characters; equal neighbours go out together."""
    text = Text(" ", no_wrap=True)
    pairs = [*zip(upper, lower, strict=True), (_NOTHING, 0)]
    start = 0
    for at, pair in enumerate(pairs):
        if pair != pairs[start]:
            above, below = pairs[start]
            if above >= 0:
                under = f" on {_PAINTS[below]}" if below >= 0 else ""
                text.append("▀" * (at - start), style=f"{_PAINTS[above]}{under}")
            start = at
    return text


def paint_of_cells(blocks: BlockView, each: int) -> np.ndarray:
    """Per cell of ``each`` blocks what most of them are: a place in the list of paints."""
    paints = np.full(len(blocks), _NOBODYS, np.int64)
    owned = blocks.owner > 0
    paints[owned] = _FIRST_OWNER + blocks.owner[owned].astype(np.int64) % len(COLOURS)
    paints[blocks.mappings > 1] = _SHARED
    for state, paint in ((BlockState.FREE, _FREE), (BlockState.CACHED, _CACHED), (BlockState.MOVING, _MOVING)):
        paints[blocks.state == state] = paint
    if each == 1:
        return paints
    cells = -(-len(blocks) // each)
    place = np.arange(len(blocks)) // each
    counted = np.bincount(place * len(_PAINTS) + paints, minlength=cells * len(_PAINTS))
    most: np.ndarray = counted.reshape(cells, len(_PAINTS)).argmax(axis=1)
    return most


# -- figures and requests ------------------------------------------------------------------------------------------


def _figures(now: dict[str, Any], recent: Recent) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="grey70", no_wrap=True, min_width=9)
    table.add_column(no_wrap=True)
    table.add_row(" faults", Text(f"{faults_in_words(now)}   {now['rates']['faults_per_second']:.1f} a second"))
    table.add_row(" moves", Text(migrations_in_words(now)))
    table.add_row(" pressure", Text(f"{now['evictions']} pages dropped   {now['preemptions']} preemptions"))
    table.add_row(" prefix", Text(prefix_in_words(now)))
    table.add_row(" paged", Text(contiguous_in_words(now["contiguous"])))
    table.add_row(" just now", Text(_in_words(recent)))
    return table


def recent_of(frames: Iterable[Frame]) -> Recent:
    """What happened in these frames, pages by kind and tier."""
    recent: Recent = {}
    for frame in frames:
        for deed in frame.figures["activity"]:
            at = deed["kind"], deed["tier"]
            recent[at] = recent.get(at, 0) + deed["pages"]
    return recent


def _in_words(recent: Recent) -> str:
    shown = [f"{kind.replace('_', ' ')} {pages} ({printable(tier, 12)})" for (kind, tier), pages in recent.items()]
    return "   ".join(shown) or "-"


def _requests(now: dict[str, Any]) -> RenderableType:
    table = Table(box=None, padding=(0, 1), header_style="grey70", expand=True)
    table.add_column("", width=2)
    table.add_column("request", no_wrap=True, overflow="crop", ratio=1)
    table.add_column("state", no_wrap=True)
    for name in ("tokens", "generated", "pages", "shared", "found", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for owner in now["owners"][:_MOST_REQUESTS]:
        choice = f" [{owner['choice']}]" if owner["choice"] else ""
        session = f"  {printable(owner['session'], 20)}" if owner["session"] else ""
        table.add_row(
            Text("  ", style=f"on {colour(owner['owner'])}"),
            Text(f"{printable(owner['request'], 48)}{choice}{session}"),
            Text(owner["state"] + (" (slow lane)" if owner["is_slow"] else "")),
            str(owner["tokens"]),
            f"{owner['generated']}/{owner['max_tokens']}",
            str(owner["pages"]),
            str(owner["shared_pages"]),
            str(owner["prefix_tokens"]),
            f"{owner['age']:.1f}",
        )
    left_out = len(now["owners"]) - _MOST_REQUESTS + now["owners_left_out"]
    if left_out > 0:
        table.add_row("", Text(f"and {left_out} more", style="grey70"))
    return table
