"""Tiers as a user writes them in one line: ``host=8GiB``, ``disk=/nvme/kv,size=200GiB``, ``remote=redis://cache:6379/0``.

The kind, what it is made of, then settings behind commas. Knows how they are spelled, and checks numbers and sizes;
whether a folder or a store can be used shows when it is opened.
"""

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from kvpager.config.shown import shown
from kvpager.config.sizes import AUTO, MAX_SIZE, parse_size
from kvpager.config.tiers import DiskTier, HostTier, RemoteTier, TierOptions
from kvpager.errors import ConfigError

Number = TypeVar("Number", int, float)
Setting = Callable[[str], object]  # from its text to its value, or ValueError


def parse_tier(text: str) -> TierOptions:
    """The tier that ``text`` describes. Raises ConfigError that names what is wrong with it and how it is written."""
    kind, _, rest = text.strip().partition("=")
    kind = kind.strip().lower()
    if kind not in _READERS:
        near = difflib.get_close_matches(kind, _READERS, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"write {_EXAMPLES}"
        raise ConfigError(f"tier {shown(text)} is of no known kind; {remedy}")
    first, *settings = [part.strip() for part in rest.split(",")]
    return _READERS[kind](first, settings)


_EXAMPLES = "'host=8GiB', 'disk=FOLDER,size=200GiB' or 'remote=redis://HOST:6379/0'"


def _host(size: str, settings: list[str]) -> HostTier:
    given = _read("host", settings, _HOST)
    size = size or AUTO
    if size.lower() == AUTO:
        return HostTier(**given)  # type: ignore[arg-type]
    try:
        parse_size(size, total=MAX_SIZE)
    except ConfigError as error:
        raise ConfigError(f"the host tier's {error}; write 'host=8GiB', 'host=40%' or 'host=auto'") from error
    return HostTier(size, **given)  # type: ignore[arg-type]


def _disk(folder: str, settings: list[str]) -> DiskTier:
    if not folder:
        raise ConfigError("the disk tier needs a folder; write 'disk=FOLDER,size=200GiB'")
    given = _read("disk", settings, _DISK)
    if "size" not in given:
        raise ConfigError("the disk tier needs a limit for its folder; write 'disk=FOLDER,size=200GiB'")
    return DiskTier(_path(folder), given.pop("size"), **given)  # type: ignore[arg-type]


def _remote(url: str, settings: list[str]) -> RemoteTier:
    if "://" not in url:
        raise ConfigError(
            "the remote tier needs a URL; write 'remote=redis://HOST:6379/0' or 'remote=s3://BUCKET/NAME'"
        )
    return RemoteTier(url, **_read("remote", settings, _REMOTE))  # type: ignore[arg-type]


_READERS: dict[str, Callable[[str, list[str]], TierOptions]] = {"host": _host, "disk": _disk, "remote": _remote}


def _path(text: str) -> str:
    return os.path.expanduser(text)  # no shell does it behind a "="


def _size(text: str) -> str:
    parse_size(text)
    return text


def _seconds(text: str) -> float:
    return _above_zero(float, text, "a number of seconds")


def _count(text: str) -> int:
    return _above_zero(int, text, "a whole number")


def _above_zero(kind: type[Number], text: str, what: str) -> Number:
    try:
        value = kind(text)
    except ValueError:
        value = kind(0)
    if not 0 < value < float("inf"):
        raise ValueError(f"it is {what} above 0")
    return value


def _flag(text: str) -> bool:
    if text not in ("", "true", "false"):
        raise ValueError("it stands alone, or is 'true' or 'false'")
    return text != "false"


def _direct(text: str) -> bool | str:
    return AUTO if text == AUTO else _flag(text)


_SEAL: dict[str, Setting] = {"key_file": _path, "encrypt": _flag, "compress": _flag}
_HOST: dict[str, Setting] = {"exclusive": _flag}
_DISK: dict[str, Setting] = {
    "size": _size,
    "read_only": _flag,
    "direct": _direct,
    "allow_shared": _flag,
    "exclusive": _flag,
    **_SEAL,
}
_REMOTE: dict[str, Setting] = {
    "deadline": _seconds,
    "tries": _count,
    "prefix": str,
    "expire": _count,
    "believe": _seconds,
    "max_moving_bytes": parse_size,
    **_SEAL,
}


def _read(kind: str, settings: Iterable[str], known: Mapping[str, Setting]) -> dict[str, object]:
    """Settings by name. Raises ConfigError for one that is unknown, given twice, or can't be read."""
    given: dict[str, object] = {}
    for setting in settings:
        name, _, text = (part.strip() for part in setting.partition("="))
        if name not in known:
            raise ConfigError(f"the {kind} tier has no setting {_harmless(name)}; {_suggest(name, known)}")
        if name in given:
            raise ConfigError(f"the {kind} tier's {name!r} is given twice; leave one out")
        if not text and known[name] not in (_flag, _direct):
            raise ConfigError(f"the {kind} tier's {name!r} needs a value; write '{name}=VALUE'")
        try:
            given[name] = known[name](text)
        except ValueError as error:
            raise ConfigError(f"the {kind} tier's {name!r} can't be {shown(text)}: {error}") from error
    if given.get("encrypt") and "key_file" not in given:
        raise ConfigError(f"the {kind} tier encrypts with a key; write '{kind}=...,key_file=FILE,encrypt'")
    return given


def _harmless(name: str) -> str:
    """What may be part of a password, behind a comma in it, is not shown."""
    return "of that spelling (a comma in a URL is written %2C)" if "@" in name else shown(name)


def _suggest(name: str, known: Mapping[str, Setting]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    size = "write 'host=8GiB' or 'host=auto'; else " if known is _HOST else ""
    return f"{size}known are {', '.join(known)}"
