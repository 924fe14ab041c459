"""Kinds of option values: which are legal, and the normal form of one. Knows no option by name."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvpager.config.attend import ATTEND_NAMES, describe, parse_attend
from kvpager.config.memory import resolve_capacity
from kvpager.config.quotas import TenantQuota, parse_quota
from kvpager.config.sizes import MAX_SIZE, parse_size
from kvpager.config.tier_text import parse_tier
from kvpager.config.tiers import TierOptions, check_order


class Kind(Protocol):
    """The legal values of an option. Both calls give the value in its normal form, or raise ValueError."""

    @property
    def legal(self) -> str: ...

    def parse(self, text: str) -> object:
        """A value written as text, as in the environment."""
        ...

    def check(self, value: object) -> object:
        """A value of a type of its own, as in a TOML file or an argument."""
        ...


@dataclass(frozen=True, slots=True)
class Flag:
    legal: str = "true or false"

    def parse(self, text: str) -> bool:
        word = text.lower()
        if word in ("true", "1", "yes", "on"):
            return True
        if word in ("false", "0", "no", "off"):
            return False
        raise ValueError

    def check(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from ``low`` to ``high``; ``none`` says what leaving it out means, where that is legal."""

    low: int
    high: int = 2**63 - 1
    none: str | None = None

    @property
    def legal(self) -> str:
        upto = "" if self.high == 2**63 - 1 else f" and at most {self.high}"
        none = "" if self.none is None else f", or 'none' ({self.none})"
        return f"a whole number of at least {self.low}{upto}{none}"

    def parse(self, text: str) -> int | None:
        if self.none is not None and text.lower() == "none":
            return None
        return self.check(int(text))

    def check(self, value: object) -> int | None:
        if self.none is not None and (value is None or value == "none"):
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class Share:
    legal: str = "a number from 0 to below 0.5"

    def parse(self, text: str) -> float:
        return self.check(float(text))

    def check(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 0.5:
            raise ValueError
        return float(value)


@dataclass(frozen=True, slots=True)
class Fraction:
    legal: str = "a number from 0 to 1"

    def parse(self, text: str) -> float:
        return self.check(float(text))

    def check(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise ValueError
        return float(value)


@dataclass(frozen=True, slots=True)
class PositiveFraction:
    legal: str = "a number above 0 and at most 1"

    def parse(self, text: str) -> float:
        return self.check(float(text))

    def check(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise ValueError
        return float(value)


@dataclass(frozen=True, slots=True)
class Text:
    """A text that ``pattern`` matches whole."""

    legal: str
    pattern: str = r"\S(.*\S)?"

    def parse(self, text: str) -> str:
        return self.check(text)

    def check(self, value: object) -> str:
        if not isinstance(value, str) or re.fullmatch(self.pattern, value) is None:
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class OptionalText:
    """A text that ``pattern`` matches whole, or nothing; ``none`` says what that means."""

    what: str
    pattern: str
    none: str

    @property
    def legal(self) -> str:
        return f"{self.what}, or 'none' ({self.none})"

    def parse(self, text: str) -> str | None:
        return self.check(text)

    def check(self, value: object) -> str | None:
        if value is None or value == "none":
            return None
        if not isinstance(value, str) or re.fullmatch(self.pattern, value) is None:
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class File:
    """The path of a file; ``none`` says what leaving it out means."""

    none: str

    @property
    def legal(self) -> str:
        return f"the path of a file, or 'none' ({self.none})"

    def parse(self, text: str) -> str | None:
        return self.check(text)

    def check(self, value: object) -> str | None:
        if value is None or value == "none":
            return None
        path = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not isinstance(path, str) or not path or "\0" in path:
            raise ValueError
        return path


@dataclass(frozen=True, slots=True)
class PathOfFile:
    """As ``File``; its normal form is a Path."""

    none: str

    @property
    def legal(self) -> str:
        return File(self.none).legal

    def parse(self, text: str) -> Path | None:
        return self.check(text)

    def check(self, value: object) -> Path | None:
        path = File(self.none).check(value)
        return None if path is None else Path(path)


@dataclass(frozen=True, slots=True)
class Capacity:
    """``auto``, a size or a percentage; stays as it was written, because only the device knows what a share is of."""

    legal: str = "'auto', a size such as '2GiB', or a percentage of the free memory such as '80%'"

    def parse(self, text: str) -> str | int:
        return self.check(text)

    def check(self, value: object) -> str | int:
        if not isinstance(value, (str, int)):
            raise ValueError
        resolve_capacity(value, available=MAX_SIZE)
        return value


@dataclass(frozen=True, slots=True)
class Bytes:
    """A size; stays as it was written."""

    legal: str = "a size such as '64MiB'"

    def parse(self, text: str) -> str | int:
        return self.check(text)

    def check(self, value: object) -> str | int:
        if not isinstance(value, (str, int)) or isinstance(value, bool) or parse_size(value) < 1:
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class AttendText:
    """A way to attend, in the form in which it is shown."""

    legal: str = f"one of {', '.join(ATTEND_NAMES)}, with settings such as 'selective:budget=4096'"

    def parse(self, text: str) -> str:
        return self.check(text)

    def check(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError
        return describe(parse_attend(value))


@dataclass(frozen=True, slots=True)
class PageSize:
    """Tokens (a bare number) or bytes (a number with a unit, which stays as it was written)."""

    legal: str = "tokens such as 16, or bytes of all layers such as '16KiB'"

    def parse(self, text: str) -> str | int:
        return self.check(text)

    def check(self, value: object) -> str | int:
        if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]+", value):
            parse_size(value)
            return value
        if isinstance(value, (bool, float)) or not isinstance(value, (str, int)) or not 1 <= int(value) <= MAX_SIZE:
            raise ValueError
        return int(value)


@dataclass(frozen=True, slots=True)
class Seconds:
    """A length of time above 0; ``none`` says what leaving it out means, where that is legal."""

    none: str | None = None

    @property
    def legal(self) -> str:
        return "seconds above 0 such as 0.5" + ("" if self.none is None else f", or 'none' ({self.none})")

    def parse(self, text: str) -> float | None:
        if self.none is not None and text.lower() == "none":
            return None
        return self.check(float(text))

    def check(self, value: object) -> float | None:
        if self.none is not None and (value is None or value == "none"):
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise ValueError
        return float(value)


@dataclass(frozen=True, slots=True)
class Tiers:
    """Tiers, or texts that describe them; in one text they are separated by ``;``."""

    legal: str = (
        "none, or a list of 'host=8GiB', 'disk=FOLDER,size=200GiB' and 'remote=URL', the nearest first; "
        "docs/tiers.md has their settings"
    )

    def parse(self, text: str) -> tuple[TierOptions, ...]:
        return () if text.lower() == "none" else self.check(text.split(";"))

    def check(self, value: object) -> tuple[TierOptions, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError
        return check_order(parse_tier(item) if isinstance(item, str) else item for item in value)


@dataclass(frozen=True, slots=True)
class Quotas:
    """Quotas of tenants, or texts that describe them; in one text they are separated by ``;``."""

    legal: str = "none, or a list such as 'team-a=2GiB' and 'team-b=10%,weight=2'"

    def parse(self, text: str) -> tuple[TenantQuota, ...]:
        return () if text.lower() == "none" else self.check(text.split(";"))

    def check(self, value: object) -> tuple[TenantQuota, ...]:
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, (str, TenantQuota)) for item in value):
            raise ValueError
        return tuple(parse_quota(item) if isinstance(item, str) else item for item in value)


LISTS = (Tiers, Quotas)  # the flag of such an option is given once for each item
