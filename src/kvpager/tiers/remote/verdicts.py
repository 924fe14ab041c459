"""What is known of a store that others change too: which keys are there, which are not, and until when to believe it.

Both books are in the order in which their entries were confirmed, which is the order in which they run out as well, so
the oldest goes first when a book is full and running out costs a look at its front.
"""

from collections import OrderedDict
from collections.abc import Iterable

from kvpager.errors import InvariantError
from kvpager.tiers.watcher import TierWatcher
from kvpager.types import Clock, ContentKey, PageReason

_NO_SLOT = 0  # a store of others has none


class Verdicts:
    """``there_for``, ``absent_for``: seconds that a verdict holds. ``most``: entries of either kind."""

    def __init__(self, clock: Clock, there_for: float, absent_for: float, most: int) -> None:
        self._clock = clock
        self._there_for, self._absent_for, self._most = there_for, absent_for, most
        self._there: OrderedDict[ContentKey, float] = OrderedDict()  # key -> until when
        self._absent: OrderedDict[ContentKey, float] = OrderedDict()
        self._wrong: OrderedDict[ContentKey, None] = OrderedDict()  # quarantined: no moment makes them right
        self._watcher: TierWatcher | None = None

    @property
    def num_there(self) -> int:
        return len(self._there)

    def get(self, key: ContentKey) -> bool | None:
        now = self._clock()
        if self._there.get(key, now) > now:
            return True
        if key in self._wrong or self._absent.get(key, now) > now:
            return False
        return None

    def there(self) -> list[ContentKey]:
        now = self._clock()
        return [key for key, until in self._there.items() if until > now]

    def watch(self, watcher: TierWatcher | None) -> None:
        """``watcher`` is told which keys are believed to be there, until ``tick`` says that this has run out."""
        self._watcher = watcher
        if watcher is not None:
            for key in self._there:
                watcher.stored(key, PageReason.FOUND, _NO_SLOT)

    def set_there(self, key: ContentKey, why: PageReason = PageReason.LEARNED) -> None:
        """Somebody has just seen it, or stored it."""
        self._absent.pop(key, None)
        self._wrong.pop(key, None)
        if self._watcher is not None and key not in self._there:
            self._watcher.stored(key, why, _NO_SLOT)
        self._enter(self._there, key, self._clock() + self._there_for)

    def set_absent(self, key: ContentKey, why: PageReason = PageReason.FORGOTTEN) -> None:
        self._leave(key, why)
        self._enter(self._absent, key, self._clock() + self._absent_for)

    def set_wrong(self, key: ContentKey) -> None:
        """What is there must not be used: absent until somebody stores it anew."""
        self._leave(key, PageReason.WRONG)
        self._wrong[key] = None
        if len(self._wrong) > self._most:
            self._wrong.popitem(last=False)

    def learn(self, keys: Iterable[ContentKey], found: Iterable[bool]) -> None:
        """Answers to a question that was asked a while ago: what was confirmed since then counts more."""
        for key, is_there in zip(keys, found, strict=True):
            if key in self._wrong or self.get(key):
                continue
            if is_there:
                self.set_there(key)
            else:
                self.set_absent(key)

    def tick(self) -> None:
        """Lets go of what has run out."""
        now = self._clock()
        for book in (self._there, self._absent):
            while book and next(iter(book.values())) <= now:
                self._drop_oldest(book)

    def _enter(self, book: "OrderedDict[ContentKey, float]", key: ContentKey, until: float) -> None:
        book[key] = until
        book.move_to_end(key)
        if len(book) > self._most:
            self._drop_oldest(book)

    def _leave(self, key: ContentKey, why: PageReason) -> None:
        if self._there.pop(key, None) is not None and self._watcher is not None:
            self._watcher.removed(key, why, _NO_SLOT)

    def _drop_oldest(self, book: "OrderedDict[ContentKey, float]") -> None:
        key, _ = book.popitem(last=False)
        if book is self._there and self._watcher is not None:
            self._watcher.removed(key, PageReason.EXPIRED, _NO_SLOT)

    def check(self) -> None:
        if any(len(book) > self._most for book in (self._there, self._absent, self._wrong)):
            raise InvariantError("a remote tier knows more keys than it should")
        if self._there.keys() & self._absent.keys() or self._there.keys() & self._wrong.keys():
            raise InvariantError("a remote tier believes a key to be there and not to be there")
        for book in (self._there, self._absent):
            if list(book.values()) != sorted(book.values()):
                raise InvariantError("verdicts of a remote tier are out of order")
