"""What a user asks for below the device: one small object per tier, given to ``open_cache(tiers=[...])``.

They hold settings only. The tiers themselves are opened by assemble.py, which knows the size of a page.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kvpager.config.shown import shown
from kvpager.config.sizes import AUTO
from kvpager.errors import ConfigError


@dataclass(frozen=True, slots=True)
class HostTier:
    """Copies in ordinary memory; pinned where the device is a GPU.

    ``capacity``: bytes (``"8 GiB"``), a share of all memory (``"40%"``), or ``"auto"``: a quarter of what the machine,
    or its control group, has. ``pages``: instead of a capacity, how many pages. ``exclusive``: a page that came up is
    dropped here and copied down again when it leaves the device, so that no page takes room twice; else its copy stays.
    """

    capacity: int | str = AUTO
    pages: int | None = None
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class DiskTier:
    """Copies in files of ``folder``, which outlive the process. ``capacity``: all that the folder may hold, in bytes.

    ``read_only``: use what another process keeps there, and write nothing. ``key_file``: a file of 32 secret bytes;
    pages then carry a keyed seal, and what was changed without the key is not used. ``encrypt``: nor can they be read
    without it. ``compress``: without loss, where that makes a page smaller. ``direct``: past the page cache of the
    system; "auto" where the file system can. ``allow_shared``: also a folder that other users may enter, or a
    link; only if all of them are trusted. ``exclusive``: as for the host; a crash then loses what the device held.
    """

    folder: str | Path
    capacity: int | str
    read_only: bool = False
    key_file: str | Path | None = None
    encrypt: bool = False
    compress: bool = False
    direct: bool | str = AUTO
    allow_shared: bool = False
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class RemoteTier:
    """Copies in a store that others share: ``redis://host:port/0`` (``rediss://`` with TLS), ``s3://bucket/folder``,
    ``gs://bucket/folder``, ``az://account/container/folder``, ``memory:///``. Credentials: in a Redis URL, and for the
    others where their own tools look for them. How much it holds, and what it drops, is the store's own affair.

    ``deadline``: seconds a request may take, its repetitions included. ``tries``: how often one that fails in passing
    is made, the first time included. ``prefix``: of all names. ``expire``: seconds until Redis drops a page (None:
    never). ``believe``: seconds for which a page that was seen is taken to be there still. ``max_moving_bytes``: under
    way in each direction; more is refused. ``key_file``, ``encrypt``, ``compress``: as for the disk.
    """

    url: str = field(repr=False)  # it may hold a password
    deadline: float = 1.0
    tries: int = 3
    prefix: str = "kvpager/"
    expire: int | None = None
    believe: float = 300.0
    max_moving_bytes: int = 256 << 20
    key_file: str | Path | None = None
    encrypt: bool = False
    compress: bool = False


TierOptions = HostTier | DiskTier | RemoteTier
_NEAREST_FIRST = (HostTier, DiskTier, RemoteTier)


def check_order(tiers: Iterable[object]) -> tuple[TierOptions, ...]:
    """The tiers as a tuple. Raises ConfigError unless they are tiers, each kind at most once, the nearest first."""
    found: list[TierOptions] = []
    for tier in tiers:
        if not isinstance(tier, _NEAREST_FIRST):
            raise ConfigError(f"a tier is a HostTier, DiskTier or RemoteTier, not {shown(tier)}")
        found.append(tier)
    ranks = [_NEAREST_FIRST.index(type(tier)) for tier in found]
    if len(set(ranks)) < len(ranks):
        raise ConfigError("there can be one tier of each kind; give each of host, disk and remote at most once")
    if ranks != sorted(ranks):
        raise ConfigError("tiers are given with the nearest first: host, then disk, then remote")
    return tuple(found)


def check_exclusive(tiers: Iterable[TierOptions], write_back: str) -> None:
    """Raises ConfigError for an exclusive tier that would get every page while the device has it, or can't drop any."""
    for tier in tiers:
        if isinstance(tier, RemoteTier) or not tier.exclusive:
            continue
        name = "host" if isinstance(tier, HostTier) else "disk"
        if write_back == "through":
            raise ConfigError(
                f"the {name} tier can't be exclusive while every page is copied down as soon as it is full; "
                "set write_back to 'back' or 'selective'"
            )
        if isinstance(tier, DiskTier) and tier.read_only:
            raise ConfigError("a disk tier that is read only drops no page, so it can't be exclusive; leave one out")
