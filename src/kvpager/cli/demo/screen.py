"""Where frames go: a live view in a terminal, plain lines of progress anywhere else.

Knows when to draw, and rich only where it is installed. Does not know what a frame means or how it is drawn.
"""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

from kvpager.cli.demo.frame import Frame
from kvpager.types import FaultKind

if TYPE_CHECKING:
    from rich.console import Console

_SECONDS_BETWEEN_LINES = 2.0
_SECONDS_BETWEEN_DRAWINGS = 0.25  # a drawing takes some milliseconds that the model does not get


class Screen(Protocol):
    """A context; outside it nothing may be shown."""

    def show(self, frame: Frame, rate: float) -> None: ...

    def conclude(self, peak: Frame) -> None:
        """After the run: leaves a lasting picture, if it is one that draws pictures."""
        ...

    def __enter__(self) -> "Screen": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def open_screen(title: str) -> Screen:
    """A live view if standard output is a terminal and rich is installed, else plain lines."""
    if not sys.stdout.isatty():
        return PlainLines(sys.stdout)
    try:
        from rich.console import Console
    except ImportError:
        print("the live view needs the package 'rich': pip install 'kvpager[cli]'", file=sys.stderr)
        return PlainLines(sys.stdout)
    return LiveView(Console(highlight=False), title)


class PlainLines:
    """A line every two seconds, without control characters."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._due = 0.0
        self._unshown: tuple[Frame, float] | None = None

    def show(self, frame: Frame, rate: float) -> None:
        self._unshown = (frame, rate)
        if frame.seconds >= self._due:
            self._flush()
            self._due = frame.seconds + _SECONDS_BETWEEN_LINES

    def conclude(self, peak: Frame) -> None:
        """Nothing: the lines stay as they are."""

    def _flush(self) -> None:
        if self._unshown is not None:
            print(format_progress(*self._unshown), file=self._stream, flush=True)
            self._unshown = None

    def __enter__(self) -> "PlainLines":
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()


def format_progress(frame: Frame, rate: float) -> str:
    """A frame in one line."""
    free = len(frame.cells) - frame.used_blocks - frame.cached_blocks
    return (
        f"{frame.seconds:6.1f} s  {frame.generated_tokens:5d} tokens {rate:6.1f}/s | "
        f"{frame.running:2d} sequences run, {frame.waiting:2d} wait, {frame.finished:2d} requests finished | "
        f"blocks {frame.used_blocks:3d} used ({frame.shared_blocks} shared) {frame.cached_blocks} cached {free} free | "
        f"faults {frame.faults.get(FaultKind.DEMAND, 0)} demand {frame.faults.get(FaultKind.MINOR, 0)} minor "
        f"{frame.faults.get(FaultKind.COPY_ON_WRITE, 0)} copies | {frame.hit_tokens} tokens found | "
        f"{frame.preemptions} preemptions"
    )


class LiveView:
    """Redraws the view in place; when it ends, the frame at the peak is printed to stay."""

    def __init__(self, console: "Console", title: str) -> None:
        from rich.live import Live

        self._console = console
        self._title = title
        self._due = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")

    def show(self, frame: Frame, rate: float) -> None:
        if frame.seconds < self._due:
            return
        from kvpager.cli.demo.view import View

        self._live.update(View(frame, self._title, rate), refresh=True)
        self._due = frame.seconds + _SECONDS_BETWEEN_DRAWINGS

    def conclude(self, peak: Frame) -> None:
        from kvpager.cli.demo.view import View

        self._console.print(View(peak, f"{self._title}: at its fullest", peak.generated_tokens / peak.seconds))

    def __enter__(self) -> "LiveView":
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)
