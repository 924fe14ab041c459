"""How far a long replay is: a bar where rich is installed, plain lines without it, nothing where nobody watches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

_EVERY = 4  # plain lines for one replay


@contextmanager
def progress_over(num_requests: int, stream: TextIO) -> Iterator[Callable[[str, int], None] | None]:
    """Gives what is to be told of each replay by name, and how many of its ``num_requests`` requests are done."""
    if not stream.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield plain_progress(num_requests, stream)
        return
    with Progress(console=Console(file=stream), transient=True) as progress:
        task = progress.add_task("", total=num_requests)
        yield lambda name, done: progress.update(task, description=name, completed=done)


def plain_progress(num_requests: int, stream: TextIO) -> Callable[[str, int], None]:
    told: tuple[str, int] | None = None

    def tell(name: str, done: int) -> None:
        nonlocal told
        now = (name, _EVERY * done // max(1, num_requests))
        if now != told:
            told = now
            print(f"{name}: {100 * done // max(1, num_requests)} %", file=stream)

    return tell
