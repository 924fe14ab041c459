"""Errors as the log may show them: where they were raised, without what they say, which may quote a client's text."""

import traceback
from pathlib import Path

from kvpager.errors import InvariantError

_FRAMES = 6


def trace_of(error: BaseException) -> str:
    """The kind of an error and the innermost places it came through. Our own bugs say only numbers, so these go in."""
    said = f" ({error})" if isinstance(error, InvariantError) else ""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    places = ", ".join(f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in reversed(frames))
    return f"{type(error).__name__}{said} at {places or 'an unknown place'}"
