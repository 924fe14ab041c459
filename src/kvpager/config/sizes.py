"""How a size in bytes is written and read. Knows no device and no option."""

import difflib
import re
from fractions import Fraction

from kvpager.config.shown import shown
from kvpager.errors import ConfigError

AUTO = "auto"
MAX_SIZE = 2**63 - 1  # bytes: what a file offset or an address can name

_LETTERS = "kmgtp"
_UNIT_BYTES: dict[str, int] = (
    {"": 1, "b": 1}
    | {letter: 1024**power for power, letter in enumerate(_LETTERS, 1)}
    | {f"{letter}i": 1024**power for power, letter in enumerate(_LETTERS, 1)}
    | {f"{letter}ib": 1024**power for power, letter in enumerate(_LETTERS, 1)}
    | {f"{letter}b": 1000**power for power, letter in enumerate(_LETTERS, 1)}
)
_UNIT_NAMES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_LEGAL_UNITS = "B, KiB, MiB, GiB, TiB, PiB (powers of 1024), KB, MB, GB, TB, PB (powers of 1000) or %"
_SIZE = re.compile(r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))\s*(?P<unit>[^\W\d_]*|%)", re.ASCII)
_LONGEST_SIZE = 64  # characters


def parse_size(size: str | int, *, total: int | None = None) -> int:
    """The bytes that ``size`` names, rounded down to a whole byte.

    ``size``: a number of bytes, or a text such as ``"2GiB"``, ``"2 GiB"`` (powers of 1024), ``"512MB"`` (powers of
    1000), ``"1.5g"`` (a bare letter is a power of 1024) or ``"80%"`` of ``total`` bytes. Case doesn't matter.

    Raises ConfigError for anything else, for less than one byte, for more than ``MAX_SIZE``, for a percentage above 100
    or without a ``total``, and for ``"auto"``, which is ``auto_pool_size``'s business.
    """
    if isinstance(size, bool) or not isinstance(size, (str, int)):
        raise ConfigError(f"a size is a whole number of bytes or a text such as '2GiB', not {shown(size)}")
    exact = _exact_size(size, total) if isinstance(size, str) else Fraction(size)
    if exact < 1:
        raise ConfigError(f"size {shown(size)} is less than one byte; a size must be positive")
    if exact > MAX_SIZE:
        raise ConfigError(f"size {shown(size)} is more than {format_size(MAX_SIZE)}, the most that can be addressed")
    return int(exact)


def _exact_size(text: str, total: int | None) -> Fraction:
    match = _SIZE.fullmatch(text.strip()) if len(text) <= _LONGEST_SIZE else None
    if match is None:
        hint = " ('auto' is not a size: it stands where an option allows it)" if text.strip().lower() == AUTO else ""
        raise ConfigError(f"size {shown(text)} can't be read{hint}; write it like '512MiB', '1.5GiB' or '80%'")
    number, unit = Fraction(match["number"]), match["unit"].lower()
    if unit == "%":
        return _share_of(total, number, text)
    if unit not in _UNIT_BYTES:
        raise ConfigError(f"size {shown(text)} has the unknown unit {match['unit']!r}; {_suggest_unit(unit)}")
    return number * _UNIT_BYTES[unit]


def _share_of(total: int | None, percent: Fraction, text: str) -> Fraction:
    if total is None:
        raise ConfigError(f"size {shown(text)} is a share, but nothing is known here to take it of; give it in bytes")
    if percent > 100:
        raise ConfigError(f"size {shown(text)} is more than there is; give at most 100%")
    return Fraction(total) * percent / 100


def _suggest_unit(unit: str) -> str:
    near = difflib.get_close_matches(unit, [name.lower() for name in _UNIT_NAMES[1:]], n=1, cutoff=0.5)
    suggested = [name for name in _UNIT_NAMES if name.lower() in near]
    return f"did you mean {suggested[0]!r}?" if suggested else f"use {_LEGAL_UNITS}"


def format_size(size: int) -> str:
    """``size`` bytes for a reader, to a tenth of the largest fitting power of 1024: ``"1.5 GiB"``, ``"512 B"``."""
    amount, unit = Fraction(abs(size)), 0
    while round(amount, 1) >= 1024 and unit < len(_UNIT_NAMES) - 1:
        amount, unit = amount / 1024, unit + 1
    digits = f"{float(round(amount, 1)):.1f}".removesuffix(".0")
    return f"{'-' if size < 0 else ''}{digits} {_UNIT_NAMES[unit]}"
