"""What a server says of itself when it starts: model, tiers, policy and addresses, as one aligned block or as JSON.

Reads an engine that is open and idle; changes nothing. Shows no key, and no password of a URL.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from kvpager.config import DiskTier, HostTier, TierOptions, format_size
from kvpager.config.shown import shown
from kvpager.engine.block_needs import blocks_of_request
from kvpager.engine.engine import Engine
from kvpager.memory.layout import KVLayout
from kvpager.types import TierKind
from kvpager.version import __version__

LENGTHS = (1 << 10, 4 << 10, 16 << 10, 64 << 10, 128 << 10)  # tokens of the requests whose number is told


@dataclass(frozen=True, slots=True)
class TierLine:
    """``bytes``, ``pages`` and ``tokens`` of a tier, 0 where it does not say; ``requests``: of so many tokens each
    that it holds together, by their length."""

    name: str
    place: str
    bytes: int
    pages: int
    tokens: int
    requests: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Start:
    version: str
    model: str
    served_name: str
    dtype: str
    device: str
    bytes_per_token: int
    page_tokens: int
    page_bytes: int
    tiers: tuple[TierLine, ...]
    eviction: str
    write_back: str
    max_running: int
    max_waiting: int
    max_request_tokens: int
    url: str
    has_page: bool
    asks_for_keys: bool

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            ("model", f"{self.served_name}: {self.dtype} on {self.device}"),
            ("kv", f"{self.bytes_per_token:,} bytes a token, pages of {self.page_tokens} tokens"),
            *self._tiers(),
            ("eviction", self.eviction + (f", pages go down by write-{self.write_back}" if self.tiers[1:] else "")),
            ("limits", f"{self.max_running} running, {self.max_waiting} waiting, "
                       f"{self.max_request_tokens:,} tokens a request"),
            ("keys", "*** (asked for)" if self.asks_for_keys else "none is asked for"),
            ("api", f"{self.url}/v1"),
            *([("page", f"{self.url}/")] if self.has_page else []),
            ("metrics", f"{self.url}/metrics"),
        ]  # fmt: skip
        return "\n".join([f"kvpager {self.version}", *(f"  {name.ljust(9)}{text}".rstrip() for name, text in lines)])

    def _tiers(self) -> list[tuple[str, str]]:
        """Columns as wide as their widest cell; numbers to the right."""
        header = ("", "", "", "", "requests of", *(_thousands(length) for length in self.tiers[0].requests))
        rows = [header, *(_cells(tier) for tier in self.tiers)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        texts = (
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )
        return list(zip(("tiers", *(tier.name for tier in self.tiers)), texts, strict=True))


def describe_start(engine: Engine, *, served_name: str, url: str, has_page: bool, asks_for_keys: bool) -> Start:
    """``url``: without a path. REQUIRES: the engine's thread has not begun a request."""
    options, layout = engine.options, engine.layout
    return Start(
        version=__version__,
        model=options.model,
        served_name=served_name,
        dtype=layout.dtype,
        device=str(engine.model.device),
        bytes_per_token=layout.bytes_per_token,
        page_tokens=layout.page_size,
        page_bytes=layout.block_bytes * layout.num_groups,
        tiers=(_device(engine), *_below(engine)),
        eviction=options.eviction,
        write_back=options.write_back,
        max_running=options.max_running,
        max_waiting=options.max_waiting,
        max_request_tokens=engine.max_request_tokens,
        url=url,
        has_page=has_page,
        asks_for_keys=asks_for_keys,
    )


def num_that_fit(engine: Engine, tokens: int) -> int:
    """Requests of a length that fit on the device together, sharing nothing."""
    needed = blocks_of_request(engine.limits, tokens, 1, engine.max_request_tokens)
    return engine.cache.pool.num_blocks // needed


def _lengths(engine: Engine) -> tuple[int, ...]:
    """Those that a request can have here; the longest it can have where that is less than any."""
    return tuple(each for each in LENGTHS if each <= engine.max_request_tokens) or (engine.max_request_tokens,)


def _device(engine: Engine) -> TierLine:
    layout, blocks = engine.layout, engine.cache.pool.num_blocks
    requests = {length: num_that_fit(engine, length) for length in _lengths(engine)}
    return TierLine(
        "device", str(engine.model.device), blocks * layout.block_bytes, blocks, _tokens(layout, blocks), requests
    )


def _below(engine: Engine) -> list[TierLine]:
    lower, layout = engine.cache.lower, engine.layout
    if lower is None:
        return []
    lines = []
    for tier, wanted in zip(lower.migration.tiers, engine.options.tiers, strict=True):
        usage = tier.usage()
        is_known = usage.kind is not TierKind.REMOTE
        blocks = usage.blocks if is_known else 0
        requests = {
            length: blocks // (layout.num_groups * layout.num_pages(length)) if is_known else 0
            for length in _lengths(engine)
        }
        tokens = _tokens(layout, blocks)
        lines.append(TierLine(usage.kind.name.lower(), _place(wanted), usage.capacity_bytes, blocks, tokens, requests))
    return lines


def _tokens(layout: KVLayout, blocks: int) -> int:
    return blocks // layout.num_groups * layout.page_size


def _place(tier: TierOptions) -> str:
    if isinstance(tier, HostTier):
        return "memory"
    return str(tier.folder) if isinstance(tier, DiskTier) else shown(tier.url).strip("'")


def _cells(tier: TierLine) -> tuple[str, ...]:
    if not tier.pages:
        return (tier.place, "-", "-", "-", "", *("-" for _ in tier.requests))
    return (
        tier.place,
        format_size(tier.bytes),
        f"{tier.pages:,} pages",
        f"{tier.tokens:,} tokens",
        "",
        *(f"{count:,}" for count in tier.requests.values()),
    )


def _thousands(tokens: int) -> str:
    return f"{tokens >> 10}k" if tokens % 1024 == 0 else str(tokens)
