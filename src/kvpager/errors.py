"""Every error kvpager raises, and whose fault it is.

KVPagerError
├── ConfigError          yours: a size, option or argument is wrong; fix it and start again
├── RequestError         the client's: this request can never run; nothing was changed
│   └── QueueFull            nobody's: too many wait already; try again later
├── ModelError           the model's: the files are missing or damaged
│   └── UnsupportedModel     it would run wrong here, so it does not run
├── MissingExtra         a dependency is not installed; the message names the extra
├── OutOfBlocks          nobody's: the pool is full; free something and retry, nothing was changed
├── TierError            the storage's: content is lost or late; it is recomputed
│   ├── WrongContent         it is there, but it is not what was stored
│   ├── TierFull             no room now; nothing was lost, later stores may work
│   └── PagesLost            non-resident pages of running sequences; these are computed again
└── InvariantError       ours: please report it; the books no longer agree
"""


class KVPagerError(Exception):
    """Base of all errors of kvpager."""


class ConfigError(KVPagerError, ValueError):
    """A setting or an argument is wrong. Fix it and call again; nothing was changed."""


class RequestError(KVPagerError, ValueError):
    """A request that can never run as asked. The message names the limit; nothing was changed."""


class QueueFull(RequestError):
    """As many requests wait as may. ``retry_after``: seconds after which it may be worth a try."""

    def __init__(self, waiting: int, retry_after: int = 1) -> None:
        super().__init__(f"the queue is full: {waiting} requests are waiting; retry later")
        self.retry_after = retry_after


class ModelError(KVPagerError):
    """A model can't be loaded: its files are missing, damaged or not a model."""


class UnsupportedModel(ModelError):
    """The model's attention is not one that kvpager computes exactly. The message says which part."""


class MissingExtra(KVPagerError, ImportError):
    """A dependency of an optional part is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}: pip install 'kvpager[{extra}]'")
        self.package = package
        self.extra = extra


class OutOfBlocks(KVPagerError, MemoryError):
    """The pool can't give the blocks asked for. Nothing was changed: free sequences, or grow the pool, and retry.

    Attributes, all in blocks: ``needed`` by the call, ``free`` now, ``pinned`` (held by open steps and transfers),
    ``reclaimable`` (cached pages that could still have been dropped).
    """

    def __init__(self, needed: int, free: int, pinned: int, reclaimable: int, total: int) -> None:
        super().__init__(
            f"{needed} blocks needed, but {free} are free and {reclaimable} reclaimable of {total} "
            f"({pinned} held by open steps and transfers). Free or truncate sequences, or grow the pool."
        )
        self.needed = needed
        self.free = free
        self.pinned = pinned
        self.reclaimable = reclaimable
        self.total = total


class TierError(KVPagerError):
    """Content of a tier is lost, wrong or late. Whoever asked recomputes it."""


class WrongContent(TierError):
    """Bytes that are not what was stored: a checksum, header or seal does not fit. Never used, never tried again."""


class TierFull(TierError):
    """A tier takes nothing at the moment: the device below it is full, or must not be written."""


class PagesLost(TierError):
    """Pages that a running sequence maps can't be read where they lie. Nothing of the step counts.

    ``pages``: which, by row of the sequence and layer group; ``cause``: what went wrong with the first of them.
    """

    def __init__(self, pages: "dict[tuple[int, int], list[int]]", cause: TierError) -> None:
        count = sum(map(len, pages.values()))
        super().__init__(f"{count} non-resident pages can't be read ({cause}); their sequences have to be recomputed")
        self.pages = pages
        self.cause = cause


class InvariantError(KVPagerError, AssertionError):
    """The bookkeeping contradicts itself: a bug of kvpager. The failed call changed nothing."""
