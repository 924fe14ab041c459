"""Options as a table: a dataclass whose fields carry their legal values, their meaning, and when to change them.

Each table is one such dataclass (config/options.py, config/server_options.py). Knows no option by name, and not where
values come from (config/load.py).
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from kvpager.config.kinds import LISTS, Flag, Kind
from kvpager.config.shown import shown
from kvpager.errors import ConfigError

ENVIRONMENT_PREFIX = "KVPAGER_"
DEBUG_ALIAS = "KV_DEBUG"  # the short name of KVPAGER_DEBUG


def option(default: object, kind: Kind, meaning: str, change: str) -> Any:
    """A field of a table: its ``kind`` (legal values), what it means, and when to change it."""
    return field(default=default, metadata={"kind": kind, "meaning": meaning, "change": change})


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One row of a table: ``legal`` values in words, ``default`` and how it is ``written``, its ``environment``
    variable and its ``flag``, which is given once for each item if it is a ``list``."""

    name: str
    default: object
    legal: str
    meaning: str
    change: str
    written: str
    environment: str
    flag: str
    is_switch: bool
    is_list: bool


def rows(table: type) -> tuple[OptionInfo, ...]:
    """A table in its order, for help texts and documentation."""
    return tuple(_row(each) for each in _options(table))


def names(table: type) -> tuple[str, ...]:
    return tuple(each.name for each in _options(table))


def read_value(table: type, name: str, value: Any, source: str, *, is_text: bool) -> object:
    """The normal form of an option's value. Raises ConfigError that names everything needed to mend it."""
    kind = next(_kind(each) for each in _options(table) if each.name == name)
    try:
        return kind.parse(value.strip()) if is_text else kind.check(value)
    except ValueError as error:
        detail = f" ({error})" if isinstance(error, ConfigError) else ""
        raise ConfigError(f"option {name!r} can't be {shown(value)} ({source}): give {kind.legal}{detail}") from error


def check_fields(options: Any) -> None:
    """For ``__post_init__`` of a table: brings each value into its normal form, or raises ConfigError."""
    for each in _options(type(options)):
        value = read_value(type(options), each.name, getattr(options, each.name), "argument", is_text=False)
        object.__setattr__(options, each.name, value)


def variable(name: str) -> str:
    """The environment variable of an option."""
    return ENVIRONMENT_PREFIX + name.upper()


def _options(table: type) -> Iterator[Field[Any]]:
    yield from fields(table)


def _kind(of: Field[Any]) -> Kind:
    kind: Kind = of.metadata["kind"]
    return kind


def _row(of: Field[Any]) -> OptionInfo:
    kind = _kind(of)
    is_list = isinstance(kind, LISTS)
    return OptionInfo(
        name=of.name,
        default=None if of.default is MISSING else of.default,
        legal=kind.legal,
        meaning=of.metadata["meaning"],
        change=of.metadata["change"],
        written=_written(of.default),
        environment=variable(of.name),
        flag=_flag(of.name, is_list),
        is_switch=isinstance(kind, Flag),
        is_list=is_list,
    )


def _flag(name: str, is_list: bool) -> str:
    """A list's flag names one item of it: ``--tier``."""
    spelled = name.removesuffix("s") if is_list else name
    return f"--{spelled.replace('_', '-')}"


def _written(value: object) -> str:
    """A default as a variable would spell it."""
    if value is None or value == ():
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
