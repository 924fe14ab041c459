"""Opens the disk tier that the settings name: which seal, which packing."""

import os
from collections.abc import Callable

from kvpager.config import parse_size
from kvpager.config.tiers import DiskTier
from kvpager.eviction.policy import EvictionPolicy
from kvpager.tiers.disk.session_files import SessionFiles
from kvpager.tiers.disk.store import DiskStore
from kvpager.tiers.sealing import Zstd, choose_seal, sealed_identity
from kvpager.types import Clock


def open_disk(
    options: DiskTier, page_bytes: int, identity: bytes, make_policy: Callable[[int], EvictionPolicy], clock: Clock
) -> DiskStore:
    """``identity``: 32 bytes, digest of the model and the layout. Raises ConfigError for a folder that can't or must
    not be used, MissingExtra where a package is not installed."""
    seal = choose_seal(options.key_file, options.encrypt)
    return DiskStore(
        os.fspath(options.folder),
        page_bytes,
        parse_size(options.capacity),
        make_policy,
        identity=sealed_identity(identity, seal),
        clock=clock,
        read_only=options.read_only,
        direct=options.direct,
        allow_shared=options.allow_shared,
        exclusive=options.exclusive,
        seal=seal,
        packing=Zstd() if options.compress else None,
    )


def open_sessions(options: DiskTier) -> SessionFiles:
    """The named sessions in the tier's folder."""
    return SessionFiles(
        os.fspath(options.folder),
        choose_seal(options.key_file, options.encrypt),
        read_only=options.read_only,
        allow_shared=options.allow_shared,
    )
