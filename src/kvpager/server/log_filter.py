"""Keeps what users wrote out of the logs: queries of paths, and messages of errors, which may quote anything.

What remains of an error is its kind and where it happened; at level DEBUG all of it.
"""

import logging
import traceback
from pathlib import Path

from kvpager.errors import InvariantError

_MOST_CAUSES = 8
_MOST_FRAMES = 6
_ACCESS = "uvicorn.access"
_LOGGERS = ("", "uvicorn", _ACCESS, "uvicorn.error", "kvpager")


def trace_without_content(error: BaseException) -> str:
    """Kinds and places of an error and of what led to it, the innermost first. Our own bugs say only numbers, so these
    are quoted."""
    return "; because of ".join(map(_trace, _chain(error)))


def _trace(error: BaseException) -> str:
    said = f" ({error})" if isinstance(error, InvariantError) else ""
    frames = traceback.extract_tb(error.__traceback__)[-_MOST_FRAMES:]
    places = ", ".join(f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in reversed(frames))
    return f"{type(error).__name__}{said} at {places or 'no known place'}"


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain and len(chain) < _MOST_CAUSES:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return chain


class HideContent(logging.Filter):
    """Of a handler: changes records, drops none."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == _ACCESS and isinstance(record.args, tuple) and len(record.args) == 5:
            client, method, path, *rest = record.args
            record.args = (client, method, str(path).partition("?")[0], *rest)
        if record.exc_info and record.exc_info[1] is not None and record.levelno > logging.DEBUG:
            record.exc_text = trace_without_content(record.exc_info[1])
            record.exc_info = None
        return True


def hide_content() -> None:
    """For all handlers that there are now: call it once logging is set up, the web server's too."""
    handlers = [handler for name in _LOGGERS for handler in logging.getLogger(name).handlers]
    if logging.lastResort is not None:
        handlers.append(logging.lastResort)
    for handler in handlers:
        if not any(isinstance(each, HideContent) for each in handler.filters):
            handler.addFilter(HideContent())
