"""The parts that a layer has of some pages, wherever these lie: as many at a time as the staging window holds."""

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from kvpager.attention.page_view import PageView
from kvpager.attention.parts import Read, check_readable, read_parts, window_of
from kvpager.tiers.staging import PartRequest, PartStream, Staged

_IN_FLIGHT = 4  # turns that a window has room for: a stream has a part of it, and reads ahead
_MARGIN = 8192  # bytes that a row of the window may have besides its part


def parts_in_turn(view: PageView, layer: int, pages: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """``pages`` int64, ascending, in one go or in several: ascending ones, and the int64 byte address of each part.

    What is read in place comes with the last ones. Addresses hold until the next turn. Raises PagesLost, and
    ConfigError where the window does not hold a single part.
    """
    addresses = view.addresses(layer, pages)
    is_away = addresses == 0
    if not is_away.any():
        yield pages, addresses
        return
    check_readable(view)
    window = window_of(view)
    at_once = max(1, window.num_bytes // _IN_FLIGHT // (view.part(layer)[1] + _MARGIN))
    away = pages[is_away]
    turns = [view.to_read(away[first : first + at_once]) for first in range(0, len(away), at_once)]
    with ExitStack() as stack:
        read: Read = window.fetch
        if len(turns) > 1:
            requests = (view.request(layer, tier, those) for by_tier in turns for tier, those in by_tier)
            read = _following(stack.enter_context(window.stream(requests)))
        for number, by_tier in enumerate(turns):
            window.pace.breathe()
            staged = read_parts(view, layer, by_tier, read)
            found, found_at = [those for _, those in by_tier], list(staged.addresses)
            if number + 1 == len(turns):
                found.append(pages[~is_away])
                found_at.append(addresses[~is_away])
            turn = np.concatenate(found)
            order = np.argsort(turn)
            yield turn[order], np.concatenate(found_at)[order]


def _following(stream: PartStream) -> Read:
    """Answers the requests the stream was given, in order."""

    def read(request: PartRequest) -> Staged:
        return stream.next()

    return read
