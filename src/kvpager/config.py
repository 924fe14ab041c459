"""Sizes, free memory, and the one table of options that the engine and the command line share.

Knows how a size is written, how much memory this process may use, and the legal values, default and meaning of each
option; ``load_options`` is the one function that reads the environment. Does not know torch, a device's memory, which
eviction policies or attention backends exist, or what an option does: that is for those who receive ``Options``.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from kvpager.errors import ConfigError

# ---------------------------------------------------------------------------------------------------------- sizes

AUTO = "auto"
DEFAULT_PAGE_SIZE = 32  # tokens; docs/design/0009-native-kernels.md has the measurements it was chosen by
AUTO_POOL_PERCENT = 70  # of the free memory: the rest is for activations, logits and what other programs take meanwhile
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
        raise ConfigError(f"a size is a whole number of bytes or a text such as '2GiB', not {_shown(size)}")
    exact = _exact_size(size, total) if isinstance(size, str) else Fraction(size)
    if exact < 1:
        raise ConfigError(f"size {_shown(size)} is less than one byte; a size must be positive")
    if exact > MAX_SIZE:
        raise ConfigError(f"size {_shown(size)} is more than {format_size(MAX_SIZE)}, the most that can be addressed")
    return int(exact)


def _exact_size(text: str, total: int | None) -> Fraction:
    match = _SIZE.fullmatch(text.strip()) if len(text) <= _LONGEST_SIZE else None
    if match is None:
        hint = " ('auto' is not a size: it stands where an option allows it)" if text.strip().lower() == AUTO else ""
        raise ConfigError(f"size {_shown(text)} can't be read{hint}; write it like '512MiB', '1.5GiB' or '80%'")
    number, unit = Fraction(match["number"]), match["unit"].lower()
    if unit == "%":
        return _share_of(total, number, text)
    if unit not in _UNIT_BYTES:
        raise ConfigError(f"size {_shown(text)} has the unknown unit {match['unit']!r}; {_suggest_unit(unit)}")
    return number * _UNIT_BYTES[unit]


def _share_of(total: int | None, percent: Fraction, text: str) -> Fraction:
    if total is None:
        raise ConfigError(f"size {_shown(text)} is a share, but nothing is known here to take it of; give it in bytes")
    if percent > 100:
        raise ConfigError(f"size {_shown(text)} is more than there is; give at most 100%")
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


# --------------------------------------------------------------------------------------------------------- memory


@dataclass(frozen=True, slots=True)
class _Limit:
    """One memory limit of a control group, bytes: what it allows, and what of that is taken and can't be dropped."""

    allowed: int
    taken: int


def total_memory(root: Path = Path("/")) -> int:
    """The memory of this host that this process may ever use, bytes: the host's, or less where a cgroup says so.

    ``root`` is where ``proc`` and ``sys`` are looked for. Raises ConfigError where the host doesn't tell.
    """
    limits = [limit.allowed for limit in _cgroup_limits(root)]
    return min([_meminfo(root, "MemTotal"), *limits])


def available_memory(root: Path = Path("/")) -> int:
    """The memory of this host that this process could still take without swapping, bytes; 0 if there is none.

    The least of the host's available memory and of what is left in each cgroup around the process (version 1 and 2,
    file cache that can be dropped counted as free). ``root`` and errors as for ``total_memory``.
    """
    left = [limit.allowed - limit.taken for limit in _cgroup_limits(root)]
    return max(0, min([_meminfo(root, "MemAvailable"), _meminfo(root, "MemTotal"), *left]))


def auto_pool_size(available: int) -> int:
    """What ``capacity = "auto"`` means where ``available`` bytes are free: 70 % of them, in bytes.

    The choice is inside the usual 60-80 %. Measure ``available`` after the model is loaded, on the device that holds
    the pool. Raises ConfigError if nothing is free.
    """
    size = available * AUTO_POOL_PERCENT // 100
    if size < 1:
        raise ConfigError("no memory is free for the pool; free some, or give 'capacity' as a size in bytes")
    return size


def resolve_capacity(capacity: str | int, available: int) -> int:
    """The pool size in bytes that ``capacity`` asks for: ``"auto"``, a size, or a percentage of ``available`` bytes.

    Raises ConfigError as ``parse_size`` and ``auto_pool_size`` do.
    """
    if isinstance(capacity, str) and capacity.strip().lower() == AUTO:
        return auto_pool_size(available)
    return parse_size(capacity, total=available)


def _meminfo(root: Path, name: str) -> int:
    """A line of /proc/meminfo (``MemTotal:  16384 kB``), bytes."""
    try:
        text = (root / "proc/meminfo").read_text()
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(f"{name}:"))
    except (OSError, StopIteration, ValueError, IndexError) as error:
        raise ConfigError(
            f"this host doesn't say how much memory it has (no {name} in /proc/meminfo); give 'capacity' in bytes"
        ) from error


def _cgroup_limits(root: Path) -> Iterator[_Limit]:
    """Every limit on this process, of its own group and of the groups around it; none outside a cgroup."""
    mounts = root / "sys/fs/cgroup"
    for controllers, group in _own_groups(root):
        if not controllers:  # version 2 has one hierarchy, mounted beside version 1 or alone
            for folder in (*_folders(mounts, group), *_folders(mounts / "unified", group)):
                yield from _read_limit(folder, ("memory.max", "memory.high"), "memory.current", "inactive_file")
        elif "memory" in controllers:
            for folder in _folders(mounts / "memory", group):
                yield from _read_limit(
                    folder, ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"
                )


def _own_groups(root: Path) -> Iterator[tuple[list[str], str]]:
    """The lines of /proc/self/cgroup, ``4:memory,cpu:/a/b``, as (controllers, group)."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        yield [name for name in controllers.split(",") if name], group


def _folders(mount: Path, group: str) -> list[Path]:
    """The folders of ``group`` and of all groups around it. A container may see only its own group, as the mount."""
    parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _read_limit(folder: Path, limits: Iterable[str], usage: str, droppable: str) -> Iterator[_Limit]:
    allowed = [value for value in (_read_number(folder / name) for name in limits) if value is not None]
    if allowed:
        taken = (_read_number(folder / usage) or 0) - _read_stat(folder / "memory.stat", droppable)
        yield _Limit(min(allowed), max(0, taken))


def _read_number(path: Path) -> int | None:
    """The number in a cgroup file; None if there is no such file, or no limit (``max``)."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _read_stat(path: Path, name: str) -> int:
    try:
        return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.split()[:1] == [name])
    except (OSError, StopIteration, ValueError, IndexError):
        return 0


# --------------------------------------------------------------------------------------------- kinds of option values


class _Kind(Protocol):
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
class _Flag:
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
class _Whole:
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
class _Share:
    legal: str = "a number from 0 to below 0.5"

    def parse(self, text: str) -> float:
        return self.check(float(text))

    def check(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 0.5:
            raise ValueError
        return float(value)


@dataclass(frozen=True, slots=True)
class _Text:
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
class _Capacity:
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
class _PageSize:
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


# -------------------------------------------------------------------------------------------------------- options

ENVIRONMENT_PREFIX = "KVPAGER_"
RESERVED_VARIABLES = frozenset({"KVPAGER_HOME"})  # not an option: the folder where models are kept, read by models/
_DEBUG_ALIAS = "KV_DEBUG"  # the short name of KVPAGER_DEBUG

_NAME = r"[a-z][a-z0-9_-]*"
_DTYPES = "'auto', 'float32', 'bfloat16' or 'float16'"
_DTYPE_PATTERN = "auto|float32|bfloat16|float16"
_KV_DTYPES = "'auto', 'float32', 'bfloat16', 'float16', 'int8' or 'float8_e4m3'"
_KV_DTYPE_PATTERN = f"{_DTYPE_PATTERN}|int8|float8_e4m3"


def _option(default: object, kind: _Kind, meaning: str, change: str) -> Any:
    """A field of ``Options``: its ``kind`` (legal values), what it means, and when to change it."""
    return field(default=default, metadata={"kind": kind, "meaning": meaning, "change": change})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options of the engine and the command line. Immutable; an illegal value raises ConfigError.

    The table below is the documentation too: ``options_table`` renders it, ``list_options`` hands it to programs.
    """

    model: str = _option(
        "smollm2",
        _Text("a model folder, a .gguf file, a hub id or a short name"),
        "The model to run.",
        "To run another model.",
    )
    dtype: str = _option(
        "auto",
        _Text(_DTYPES, _DTYPE_PATTERN),
        "Number format of weights and activations; 'auto' is the format in the model's files.",
        "float32 to compare runs exactly; bfloat16 to halve the memory of a float32 model.",
    )
    device: str = _option(
        "auto",
        _Text("'auto', 'cpu', 'cuda' or 'cuda:N'", "auto|cpu|cuda(:[0-9]{1,4})?"),
        "Where the model runs and the pool lies; 'auto' is the first CUDA device, else the CPU.",
        "To choose among several devices, or to keep a busy one free.",
    )
    capacity: str | int = _option(
        AUTO,
        _Capacity(),
        f"Size of the block pool; 'auto' is {AUTO_POOL_PERCENT} % of the memory that is free once the model is loaded.",
        "Lower it to leave memory to others; raise it to hold more requests and longer prefixes.",
    )
    page_size: str | int = _option(
        DEFAULT_PAGE_SIZE,
        _PageSize(),
        "Size of a page: a bare number is tokens, a number with a unit is bytes over all layers.",
        "Larger for very long contexts (smaller tables); smaller for short requests (less unused room in last pages).",
    )
    kv_dtype: str = _option(
        "auto",
        _Text(_KV_DTYPES, _KV_DTYPE_PATTERN),
        "Number format of keys and values in the pool; 'auto' is that of the activations. 'int8' and 'float8_e4m3' are "
        "lossy: one byte an element, and a scale per page and head.",
        "int8 to hold twice the tokens of a bfloat16 model where answers may differ a little; docs/log.md has figures.",
    )
    eviction: str = _option(
        "lru",
        _Text("the name of an eviction policy", _NAME),
        "Which cached page goes first when blocks are needed; 'lru' is the one unused for longest.",
        "When a replay of your own traffic shows more hits with another policy.",
    )
    eviction_threshold: float = _option(
        0.0,
        _Share(),
        "Share of free blocks below which reclaim starts in the background; 0 is off: cached pages stay until their "
        "blocks are needed.",
        "With a lower tier, 0.1 keeps blocks ready so that no step waits; without one it only shortens what is cached.",
    )
    prefix_cache: bool = _option(
        True,
        _Flag(),
        "Keep the pages of finished requests and reuse them for prompts that begin alike.",
        "Off to measure without reuse.",
    )
    partial_hits: bool = _option(
        True,
        _Flag(),
        "Reuse the common beginning of a page as well, by copying it on write.",
        "Off if prompts part at page borders anyway; it then saves a look-up.",
    )
    max_running: int = _option(
        256,
        _Whole(1),
        "Sequences that run at the same time, at most.",
        "Lower it for faster single answers; raise it for more tokens per second if the pool has room.",
    )
    max_batch_tokens: int = _option(
        512,
        _Whole(1),
        "Tokens computed in one step, at most; longer prompts are cut into chunks.",
        "Raise it for faster prompts; lower it for steadier gaps between the tokens of running requests.",
    )
    max_waiting: int = _option(
        1024,
        _Whole(1),
        "Requests that may wait to run; more are refused at once.",
        "Lower it to refuse early under overload; raise it for large offline batches.",
    )
    max_context: int | None = _option(
        None,
        _Whole(1, none="the model's own limit"),
        "Tokens of prompt and answer together, at most, per request.",
        "Lower it so that no single request can take the whole pool.",
    )
    attention: str = _option(
        AUTO,
        _Text("'auto' or the name of an attention backend", _NAME),
        "What computes attention over the pages; 'auto' is the fastest that works here.",
        "'reference' to check a result against the plain computation.",
    )
    native: str = _option(
        AUTO,
        _Text(
            "'auto', 'off', 'portable', 'avx2', 'avx512', 'avx512_bf16' or 'amx'",
            "auto|off|portable|avx2|avx512|avx512_bf16|amx",
        ),
        "Native CPU kernels of the whole process: 'auto' is the best instruction set that the build and the processor "
        "have, 'off' computes with torch.",
        "To find out whether a kernel is to blame: 'off', or a lesser instruction set.",
    )
    fused_layers: bool = _option(
        True,
        _Flag(),
        "Native kernels between the matrix products of plain Llama-like layers on a CPU; other models run as they are.",
        "Off to run the model's own modules, for instance to compare.",
    )
    deterministic: bool = _option(
        False,
        _Flag(),
        "The same bits with and without prefix hits, preemption and batch mates, at some speed.",
        "On for tests, audits and comparisons of runs.",
    )
    seed: int | None = _option(
        0,
        _Whole(0, high=2**64 - 1, none="a fresh one each start"),
        "Seed of the requests that bring none of their own.",
        "To draw other answers from the same prompts.",
    )
    debug: bool = _option(
        False,
        _Flag(),
        f"Poison blocks when they are freed and check them when they are given out. {_DEBUG_ALIAS}=1 is short for it.",
        "On to find a use after free; it costs a write of each freed block.",
    )

    def __post_init__(self) -> None:
        for option in fields(self):
            value = _read_value(option.name, getattr(self, option.name), "argument", is_text=False)
            object.__setattr__(self, option.name, value)


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One row of the table: ``legal`` values in words, ``default``, and its ``environment`` variable."""

    name: str
    default: object
    legal: str
    meaning: str
    change: str
    environment: str
    is_flag: bool


_KINDS: dict[str, _Kind] = {option.name: option.metadata["kind"] for option in fields(Options)}


def list_options() -> tuple[OptionInfo, ...]:
    """The table of options in its order, for help texts and documentation."""
    return tuple(
        OptionInfo(
            name=option.name,
            default=None if option.default is MISSING else option.default,
            legal=_KINDS[option.name].legal,
            meaning=option.metadata["meaning"],
            change=option.metadata["change"],
            environment=_variable(option.name),
            is_flag=isinstance(_KINDS[option.name], _Flag),
        )
        for option in fields(Options)
    )


def load_options(
    config_path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Options:
    """The options in force: defaults, over them the TOML file, then the environment, then ``overrides``.

    ``config_path``: a TOML file of flat ``name = value`` lines; None is no file. ``environ``: the variables to read
    ``KVPAGER_<NAME>`` from, None for this process's own; an empty one counts as unset. ``overrides``: by name, as
    values or as text; None counts as not given (``"none"`` is the value).

    Raises ConfigError for a file that can't be read, an unknown name (with a suggestion) or an illegal value (with the
    name, the value, where it came from, and what is legal).
    """
    given: dict[str, Any] = {}
    if config_path is not None:
        given |= _from_file(Path(config_path))
    given |= _from_environment(os.environ if environ is None else environ)
    given |= _from_overrides(overrides or {})
    return Options(**given)


def _from_file(path: Path) -> dict[str, object]:
    source = f"file {path}"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config file {path} can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or numbers and nesting without end
        raise ConfigError(f'config file {path} is not TOML: {error}; write lines such as capacity = "2GiB"') from error
    _refuse_unknown(content, source)
    return {name: _read_value(name, value, source, is_text=False) for name, value in content.items()}


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    given: dict[str, object] = {}
    if environ.get(_DEBUG_ALIAS):
        given["debug"] = _read_value("debug", environ[_DEBUG_ALIAS], f"environment, {_DEBUG_ALIAS}", is_text=True)
    for variable, text in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in RESERVED_VARIABLES or not text:
            continue
        source = f"environment, {variable}"
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name not in _KINDS or variable != _variable(name):
            raise ConfigError(_unknown(variable, [_variable(known) for known in _KINDS], "environment"))
        given[name] = _read_value(name, text, source, is_text=True)
    return given


def _from_overrides(overrides: Mapping[str, object]) -> dict[str, object]:
    _refuse_unknown(overrides, "argument")
    return {
        name: _read_value(name, value, "argument", is_text=isinstance(value, str))
        for name, value in overrides.items()
        if value is not None
    }


def _read_value(name: str, value: Any, source: str, *, is_text: bool) -> object:
    """The normal form of an option's value. Raises ConfigError that names everything needed to mend it."""
    kind = _KINDS[name]
    try:
        return kind.parse(value.strip()) if is_text else kind.check(value)
    except ValueError as error:
        detail = f" ({error})" if isinstance(error, ConfigError) else ""
        raise ConfigError(f"option {name!r} can't be {_shown(value)} ({source}): give {kind.legal}{detail}") from error


def _refuse_unknown(names: Iterable[str], source: str) -> None:
    for name in names:
        if name not in _KINDS:
            raise ConfigError(_unknown(name, list(_KINDS), source))


def _unknown(name: str, known: list[str], source: str) -> str:
    spelled = str(name).replace("-", "_")
    near = difflib.get_close_matches(spelled.upper() if known[0].isupper() else spelled.lower(), known, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return f"unknown option {_shown(name)} ({source}); {remedy}"


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _shown(value: object) -> str:
    """A value as an error message shows it: cut short."""
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        return "a very long number"
    return text if len(text) <= 80 else f"{text[:77]}..."


# -------------------------------------------------------------------------------------------------- documentation

_INTRODUCTION = """\
# Options

The engine and every command share these options. Later sources win: the defaults below, then the TOML file given with
`--config` (flat lines, `max_running = 64`), then the environment (`KVPAGER_MAX_RUNNING=64`), then an argument
(`--max-running 64`). An unknown name or an illegal value stops the start with an error that says what is legal.

Sizes are written `2GiB` (powers of 1024), `2GB` (powers of 1000), `2g` (a bare letter is a power of 1024), `80%`, or as
a plain number of bytes. `auto` takes what is free, and on the host respects the memory limit of a container.
`KVPAGER_HOME` is not an option: it is the folder in which fetched models are kept.

This page is made from the table in `config.py` by `make docs`.

| option | default | legal values | meaning | when to change it |
|---|---|---|---|---|
"""


def options_table() -> str:
    """The page docs/options.md: every option with its default, legal values, meaning and when to change it."""
    return _INTRODUCTION + "".join(
        f"| `{row.name}` | `{_written(row.default)}` | {row.legal} | {row.meaning} | {row.change} |\n"
        for row in list_options()
    )


def _written(value: object) -> str:
    """A default as a TOML file would spell it; None is ``none``."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
