"""Where single pages have been: the last events of each page, of those that something happened to lately.

A page's journey is kept under its content key, so it goes on where the page comes back to the device after it was
dropped. Both bounds hold: the oldest event of a page goes first, and the page that nothing has happened to for longest.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvpager.cache.page_log import PageEvent, What
from kvpager.types import ContentKey, PageReason

MOST_PAGES = 1 << 15
MOST_EVENTS = 24  # of a page


@dataclass(frozen=True, slots=True)
class Stop:
    """``time``: unix seconds. ``tier``: its name, in small letters. ``what``: in words, with the reason."""

    time: float
    tier: str
    what: str


class Journeys:
    """A subscriber of the page log, and asked from any thread. ``to_unix``: turns the log's seconds into unix time."""

    wants_content = wants_new = False
    wants_uses = True
    has_room = True

    def __init__(
        self, to_unix: Callable[[float], float], most_pages: int = MOST_PAGES, most_events: int = MOST_EVENTS
    ) -> None:
        assert most_pages > 0
        assert most_events > 1
        self._to_unix = to_unix
        self._most_pages, self._most_events = most_pages, most_events
        self._events: OrderedDict[ContentKey, list[PageEvent]] = OrderedDict()

    def take(self, events: Sequence[PageEvent]) -> None:
        kept = self._events
        for event in events:
            key = event.key
            if key is None or (event.reason is PageReason.FOUND and key in kept):
                continue  # nothing happened: it was told anew
            past = kept.get(key)
            if past is None:
                kept[key] = [event]
                if len(kept) > self._most_pages:
                    kept.popitem(last=False)
            else:
                past.append(event)
                kept.move_to_end(key)
                if len(past) > self._most_events:
                    del past[0]

    def of(self, key: ContentKey) -> list[Stop]:
        """The journey of a page, the oldest stop first; empty where nothing is known of it."""
        past = list(self._events.get(key, ()))
        return [Stop(self._to_unix(event.time), event.tier.name.lower(), _in_words(event)) for event in past]


def _in_words(event: PageEvent) -> str:
    if event.what in (What.STORED, What.REMOVED) and event.reason is not None:
        return f"{event.what.value}: {event.reason.value}"
    return event.what.value
