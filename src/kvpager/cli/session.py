"""Opening the engine for a command, and stopping it between two steps.

A Ctrl-C that raises in the middle of a step may end up in a callback of the libraries below, which drop it; so it is
only noted, and whoever runs steps asks for it between them.

Loads torch and transformers, so commands import it when they run. Does not know what is asked.
"""

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING

from kvpager.config import Options
from kvpager.errors import MissingExtra

if TYPE_CHECKING:
    from kvpager.engine.engine import Engine


def open_engine(options: Options, num_blocks: int | None = None) -> "Engine":
    """An engine for ``options``. Raises MissingExtra where what runs models is not installed."""
    _let_waiting_threads_sleep()
    for package in ("transformers", "safetensors"):  # before a model is looked for, which could not be fetched either
        if find_spec(package) is None:
            raise MissingExtra(package, "hf", "running a model")
    from kvpager.engine.engine import Engine

    return Engine(options.model, options=options, num_blocks=num_blocks)


def _let_waiting_threads_sleep() -> None:
    """Threads at the end of a parallel loop sleep until the others are there, unless OMP_WAIT_POLICY says otherwise.

    By default they spin. On a core that another program wants too, the thread they wait for then doesn't run, and a
    step of 50 milliseconds takes seconds. OpenMP reads the variable when torch is loaded; C's setenv leaves a value
    that is there alone (its last argument).
    """
    with suppress(OSError, AttributeError):  # where C has no setenv, threads spin
        ctypes.CDLL(None).setenv(b"OMP_WAIT_POLICY", b"passive", 0)


class Interruption:
    """Whether Ctrl-C was pressed. Pressed a second time it raises at once."""

    def __init__(self) -> None:
        self.is_asked = False

    def ask(self, signum: int, frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt  # pressed twice: the user means it
        self.is_asked = True

    def check(self) -> None:
        """Raises KeyboardInterrupt if Ctrl-C was pressed."""
        if self.is_asked:
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Inside, the first Ctrl-C is only noted; the second one raises. REQUIRES: the main thread."""
    interruption = Interruption()
    before = signal.signal(signal.SIGINT, interruption.ask)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, before)
