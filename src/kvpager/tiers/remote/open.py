"""Opens the remote tier that a URL names. The only file that knows which stores there are."""

import random
import re
import time
from importlib import import_module

from kvpager.config.tiers import RemoteTier
from kvpager.errors import ConfigError, MissingExtra
from kvpager.tiers.health import Health
from kvpager.tiers.remote.object_format import ObjectFormat
from kvpager.tiers.remote.object_store import ObjectStore
from kvpager.tiers.remote.retry import Retry
from kvpager.tiers.remote.shown_url import shown_url
from kvpager.tiers.remote.store import RemoteStore
from kvpager.tiers.remote.verdicts import Verdicts
from kvpager.tiers.sealing import Zstd, choose_seal, sealed_identity
from kvpager.types import Clock

_REDIS = ("redis", "rediss")
_OBSTORE = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "memory")
_ABSENT_FOR = 5.0  # seconds
_LONGEST_DEADLINE = 600.0
_MOST_VERDICTS = 1 << 17
_PREFIX = re.compile(r"[A-Za-z0-9_.\-]+(/[A-Za-z0-9_.\-]+)*/|")


def open_remote(
    options: RemoteTier,
    page_bytes: int,
    identity: bytes,
    clock: Clock = time.monotonic,
) -> RemoteStore:
    """``identity``: 32 bytes, digest of whatever the bytes of a page depend on beside its key. Raises ConfigError for
    options that make no sense, MissingExtra where a package is not installed. Asks the store nothing yet."""
    _check(options)
    seal = choose_seal(options.key_file, options.encrypt)
    packing = Zstd() if options.compress else None
    return RemoteStore(
        _objects(options),
        ObjectFormat(page_bytes, sealed_identity(identity, seal), packing, seal),
        clock,
        Retry(clock, time.sleep, random.Random().random, tries=options.tries),
        Health(clock),
        Health(clock),
        Verdicts(clock, options.believe, _ABSENT_FOR, _MOST_VERDICTS),
        prefix=options.prefix,
        deadline=options.deadline,
        max_moving=max(1, options.max_moving_bytes // page_bytes),
    )


def _objects(options: RemoteTier) -> ObjectStore:
    scheme = options.url.partition(":")[0]
    try:
        if scheme in _REDIS:
            redis_store: ObjectStore = import_module("kvpager.tiers.remote.redis_store").RedisStore(
                options.url, options.expire
            )
            return redis_store
        obstore_store: ObjectStore = import_module("kvpager.tiers.remote.obstore_store").ObstoreStore(
            options.url, options.deadline
        )
        return obstore_store
    except ModuleNotFoundError as error:
        if error.name not in ("redis", "obstore"):
            raise
        raise MissingExtra(error.name, "remote", f"the remote tier {shown_url(options.url)}") from error


def _check(options: RemoteTier) -> None:
    scheme = options.url.partition(":")[0]
    if scheme not in _REDIS + _OBSTORE:
        known = ", ".join(f"{each}://" for each in _REDIS + _OBSTORE)
        raise ConfigError(f"a remote tier's URL starts with one of {known}; not with {scheme[:20]!r}")
    if not _PREFIX.fullmatch(options.prefix) or ".." in options.prefix or len(options.prefix) > 512:
        raise ConfigError(
            "a remote tier's prefix is made of letters, digits, '_', '-' and '.', in parts that end with '/'"
        )
    if options.expire is not None and (scheme not in _REDIS or options.expire < 1):
        raise ConfigError("expire is for redis:// and at least one second; a bucket drops objects by its own rules")
    if not 0 < options.deadline <= _LONGEST_DEADLINE:
        raise ConfigError(f"a remote tier's deadline is more than 0 and at most {_LONGEST_DEADLINE:.0f} seconds")
    if options.believe <= 0 or options.tries < 1 or options.max_moving_bytes < 1:
        raise ConfigError("a remote tier's believe, tries and max_moving_bytes are more than 0")
