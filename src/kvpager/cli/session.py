"""Opening the engine for a command, and stopping an answer without stopping the program.

Loads torch and transformers, so commands import it when they run. Does not know what is asked.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from kvpager.config import Options
from kvpager.errors import MissingExtra

if TYPE_CHECKING:
    from kvpager.engine.engine import Engine


def open_engine(options: Options, num_blocks: int | None = None) -> "Engine":
    """An engine for ``options``. Raises MissingExtra where what runs models is not installed."""
    try:
        from kvpager.engine.engine import Engine
    except ModuleNotFoundError as error:
        if error.name not in ("transformers", "safetensors"):
            raise
        raise MissingExtra(error.name, "hf", "running a model") from error
    return Engine(options.model, options=options, num_blocks=num_blocks)


class Interruption:
    """Whether Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.is_asked = False

    def ask(self, signum: int, frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt  # pressed twice: the user means it
        self.is_asked = True


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Inside, the first Ctrl-C is only noted, so that a step under way ends in order; the second one raises."""
    interruption = Interruption()
    before = signal.signal(signal.SIGINT, interruption.ask)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, before)
