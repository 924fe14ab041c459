"""Draws a frame with rich: figures, the block map, and the latest text of some requests. Knows no engine.

Each block is two columns wide: the letter of the request that maps it, on that request's colour; a digit where several
sequences share it; shading where it is only kept to be found again; a wave where it moves between tiers; a dot where it
is free.
"""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kvpager.cli.demo.frame import Cell, Frame, RequestView
from kvpager.cli.palette import colour
from kvpager.config import format_size
from kvpager.memory.block import BlockState
from kvpager.types import FaultKind

_FAULTS = {
    FaultKind.DEMAND: "demand",
    FaultKind.MINOR: "minor",
    FaultKind.MAJOR: "major",
    FaultKind.COPY_ON_WRITE: "copy on write",
}
_MOST_SHARED = 9  # what one digit can say
_TEXT_ROWS = 8


def letter(place: int) -> str:
    """How a request is called in the map: A to Z, then a to z, then again."""
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"[place % 52]


class View:
    """A frame as something that rich can print. ``title``: what runs; ``rate``: tokens per second just now."""

    def __init__(self, frame: Frame, title: str, rate: float) -> None:
        self._frame, self._title, self._rate = frame, title, rate

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plain = options.ascii_only
        columns = max(1, (options.max_width - 2) // 2)
        yield Group(
            _headline(self._frame, self._title, self._rate),
            _progress(self._frame),
            Text(),
            *_map_lines(self._frame.cells, columns, plain),
            _legend(plain),
            Text(),
            _figures(self._frame),
            Text(),
            _texts(self._frame.requests, options.max_width),
        )


def _headline(frame: Frame, title: str, rate: float) -> RenderableType:
    line = Table.grid(expand=True)
    line.add_column()
    line.add_column(justify="right")
    line.add_row(Text(title, style="bold"), Text(f"{frame.seconds:5.1f} s   {rate:6.1f} tokens/s", style="bold"))
    return line


def _progress(frame: Frame) -> RenderableType:
    line = Table.grid(padding=(0, 1), expand=True)
    line.add_column(width=24)
    line.add_column(justify="right")
    tokens = sum(request.tokens for request in frame.requests)
    line.add_row(
        ProgressBar(total=max(1, frame.expected), completed=frame.finished),
        Text.assemble(
            (f"{frame.finished}/{frame.expected} finished", "green"),
            f"   {frame.running} sequences run",
            f"   {frame.waiting} wait",
            f"   {tokens} tokens",
        ),
    )
    return line


# -- the block map -------------------------------------------------------------------------------------------------


def _map_lines(cells: Sequence[Cell], columns: int, plain: bool) -> list[Text]:
    return [
        Text.assemble(" ", *[_cell(cell, plain) for cell in cells[start : start + columns]], no_wrap=True)
        for start in range(0, len(cells), columns)
    ]


def _cell(cell: Cell, plain: bool) -> tuple[str, str]:
    if cell.state is BlockState.FREE:
        return (". " if plain else "· ", "grey42")
    if cell.state is BlockState.CACHED:
        return ("::" if plain else "▒▒", "grey50")
    if cell.state is BlockState.MOVING:
        return ("~ ", "grey70")
    if cell.mappings > 1:
        return (f"{min(cell.mappings, _MOST_SHARED)} ", "bold black on white")
    if cell.owner is None:
        return ("? ", "bold")
    return (f"{letter(cell.owner)} ", f"black on {colour(cell.owner)}")


def _legend(plain: bool) -> Text:
    return Text.assemble(
        " ",
        ("A ", f"black on {colour(0)}"),
        " one request  ",
        ("3 ", "bold black on white"),
        f" shared by 3 ({_MOST_SHARED}: or more)  ",
        _cell(Cell(BlockState.CACHED), plain),
        " cached, findable  ",
        _cell(Cell(BlockState.FREE), plain),
        "free",
        style="grey70",
    )


# -- figures and texts ---------------------------------------------------------------------------------------------


def _figures(frame: Frame) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="grey70")
    table.add_column()
    total = len(frame.cells)
    free = total - frame.used_blocks - frame.cached_blocks - frame.moving_blocks
    moving = f" + {frame.moving_blocks} moving (~)" if frame.moving_blocks else ""
    share = frame.hit_tokens / frame.prompt_tokens if frame.prompt_tokens else 0.0
    faults = "   ".join(f"{name} {frame.faults.get(kind, 0)}" for kind, name in _FAULTS.items())
    table.add_row(
        " blocks",
        f"{frame.used_blocks} used ({frame.shared_blocks} shared) + {frame.cached_blocks} cached{moving} + {free} free",
    )
    table.add_row(" faults", faults)
    table.add_row(" prefix", f"{frame.hit_tokens:,} of {frame.prompt_tokens:,} prompt tokens found ({share:.0%})")
    table.add_row(" pressure", f"{frame.reclaimed_blocks} cached blocks reclaimed   {frame.preemptions} preemptions")
    for tier in frame.tiers:
        state = "" if tier.is_ok else "   failing"
        held = f"{tier.pages:,} pages ({format_size(tier.held_bytes)})"
        table.add_row(f" {tier.name}", f"{held}   {tier.hits:,} prompt tokens found there{state}")
    return table


def _texts(requests: Sequence[RequestView], width: int) -> RenderableType:
    """The latest text of some requests: those that run, and if few do, those that finished last."""
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(width=2, no_wrap=True)
    table.add_column(width=9, no_wrap=True, justify="right", style="grey70")
    table.add_column(no_wrap=True, overflow="crop", ratio=1)
    for request in _interesting(requests):
        name = Text(f"{letter(request.place)} ", style=f"black on {colour(request.place)}")
        table.add_row(name, f"{request.tokens}/{request.limit}", _tail(request.text, max(8, width - 16)))
    return table


def _interesting(requests: Sequence[RequestView]) -> list[RequestView]:
    running = [request for request in requests if request.state == "running"]
    others = [request for request in requests if request.state == "finished"]
    chosen = [*running, *reversed(others)][:_TEXT_ROWS]
    return sorted(chosen, key=lambda request: request.place)


def _tail(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"...{line[3 - width :]}"
