"""What a page log says, replayed: the pages that can be found on the device and in each tier."""

from collections.abc import Sequence

from kvpager import PagedCache
from kvpager.cache.page_log import PageEvent, PageLog, What
from kvpager.prefix.hashing import block_key
from kvpager.tiers.slot_book import HasBook
from kvpager.types import ContentKey, TierKind

Places = dict[ContentKey, int]  # block or slot


class Replay:
    """``has_room``: whether it takes events now; ``uses``: whether it wants to hear how pages are used."""

    wants_content = True

    def __init__(self, uses: bool = False) -> None:
        self.wants_uses = self.wants_new = uses
        self.has_room = True
        self.places: dict[TierKind, Places] = {}
        self.events: list[PageEvent] = []

    def take(self, events: Sequence[PageEvent]) -> None:
        self.events += events
        for event in events:
            here = self.places.setdefault(event.tier, {})
            if event.what is What.CLEARED:
                here.clear()
            elif event.what is What.STORED:
                assert event.key is not None
                assert event.key not in here, "a page is said to come twice"
                here[event.key] = event.block
            elif event.what is What.MOVED:
                assert event.key in here
                here[event.key] = event.block
            elif event.what is What.REMOVED:
                assert event.key is not None
                del here[event.key]


def on_device(cache: PagedCache) -> Places:
    index = cache.index
    blocks = index.all_blocks().tolist()
    return {block_key(index.key(index.node_of_block(each)), index.group_of_block(each)): each for each in blocks}


def places(cache: PagedCache) -> dict[TierKind, Places]:
    """What the books themselves say."""
    found = {TierKind.DEVICE: on_device(cache)}
    for tier in () if cache.lower is None else cache.lower.migration.tiers:
        if isinstance(tier, HasBook):
            found[tier.kind] = {
                page.key: slot for slot, page in tier.book._page_of.items() if tier.book.contains(page.key)
            }
        elif hasattr(tier, "_verdicts"):
            found[tier.kind] = dict.fromkeys(tier._verdicts._there, 0)
        else:
            found[tier.kind] = dict.fromkeys(tier.found, 0)
    return found


def watched(cache: PagedCache, replay: Replay, **options: int) -> PageLog:
    log = PageLog(cache, clock=lambda: 0.0, **options)
    log.subscribe(replay)
    return log
