"""Who is told what can be found in a tier. Each tier has one watcher at most; it must not call the tier back."""

from typing import Protocol

from kvpager.errors import TierError, WrongContent
from kvpager.types import ContentKey, PageReason


class TierWatcher(Protocol):
    """``slot``: where the tier keeps the page, its own number."""

    def stored(
        self, key: ContentKey, why: PageReason, slot: int, parent: ContentKey | None = None, group: int = 0
    ) -> None:
        """The page can be found from now on. ``parent``: None where the tier does not know it."""
        ...

    def removed(self, key: ContentKey, why: PageReason, slot: int) -> None: ...

    def cleared(self) -> None:
        """Nothing can be found any more."""
        ...


def why_unreadable(error: TierError) -> PageReason:
    """Why a page is forgotten that could not be read."""
    return PageReason.WRONG if isinstance(error, WrongContent) else PageReason.FAILED
