"""The one table of options that the engine and the command line share.

Knows the legal values, default and meaning of each option; ``load_options`` is the one function that reads the
environment. Does not know torch, which eviction policies or attention backends exist, or what an option does: that is
for those who receive ``Options``.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from kvpager.config.kinds import (
    LISTS,
    AttendText,
    Bytes,
    Capacity,
    File,
    Flag,
    Fraction,
    Kind,
    PageSize,
    PositiveFraction,
    Quotas,
    Seconds,
    Share,
    Text,
    Tiers,
    Whole,
)
from kvpager.config.memory import AUTO_POOL_PERCENT
from kvpager.config.quotas import TenantQuota
from kvpager.config.shown import shown
from kvpager.config.sizes import AUTO
from kvpager.config.tiers import TierOptions
from kvpager.errors import ConfigError

DEFAULT_PAGE_SIZE = 32  # tokens; docs/design/0009-native-kernels.md has the measurements it was chosen by
ENVIRONMENT_PREFIX = "KVPAGER_"
# Not options: the folder where models are kept, read by models/, and a key that a server asks for, read by server/.
RESERVED_VARIABLES = frozenset({"KVPAGER_HOME", "KVPAGER_API_KEY"})
_DEBUG_ALIAS = "KV_DEBUG"  # the short name of KVPAGER_DEBUG

_NAME = r"[a-z][a-z0-9_-]*"
_DTYPES = "'auto', 'float32', 'bfloat16' or 'float16'"
_DTYPE_PATTERN = "auto|float32|bfloat16|float16"
_KV_DTYPES = "'auto', 'float32', 'bfloat16', 'float16', 'int8' or 'float8_e4m3'"
_KV_DTYPE_PATTERN = f"{_DTYPE_PATTERN}|int8|float8_e4m3"


def _option(default: object, kind: Kind, meaning: str, change: str) -> Any:
    """A field of ``Options``: its ``kind`` (legal values), what it means, and when to change it."""
    return field(default=default, metadata={"kind": kind, "meaning": meaning, "change": change})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options of the engine and the command line. Immutable; an illegal value raises ConfigError.

    The table below is the documentation too: ``options_table`` renders it, ``list_options`` hands it to programs.
    """

    model: str = _option(
        "smollm2",
        Text("a model folder, a .gguf file, a hub id or a short name"),
        "The model to run.",
        "To run another model.",
    )
    dtype: str = _option(
        "auto",
        Text(_DTYPES, _DTYPE_PATTERN),
        "Number format of weights and activations; 'auto' is the format in the model's files.",
        "float32 to compare runs exactly; bfloat16 to halve the memory of a float32 model.",
    )
    device: str = _option(
        "auto",
        Text("'auto', 'cpu', 'cuda' or 'cuda:N'", "auto|cpu|cuda(:[0-9]{1,4})?"),
        "Where the model runs and the pool lies; 'auto' is the first CUDA device, else the CPU.",
        "To choose among several devices, or to keep a busy one free.",
    )
    capacity: str | int = _option(
        AUTO,
        Capacity(),
        f"Size of the block pool; 'auto' is {AUTO_POOL_PERCENT} % of the memory that is free once the model is loaded.",
        "Lower it to leave memory to others; raise it to hold more requests and longer prefixes.",
    )
    page_size: str | int = _option(
        DEFAULT_PAGE_SIZE,
        PageSize(),
        "Size of a page: a bare number is tokens, a number with a unit is bytes over all layers.",
        "Larger for very long contexts (smaller tables); smaller for short requests (less unused room in last pages).",
    )
    kv_dtype: str = _option(
        "auto",
        Text(_KV_DTYPES, _KV_DTYPE_PATTERN),
        "Number format of keys and values in the pool; 'auto' is that of the activations. 'int8' and 'float8_e4m3' are "
        "lossy: one byte an element, and a scale per page and head.",
        "int8 to hold twice the tokens of a bfloat16 model where answers may differ a little; docs/log.md has figures.",
    )
    tiers: tuple[TierOptions, ...] = _option(
        (),
        Tiers(),
        "Where pages go below the device, the nearest first; without any, what is dropped there is computed again. The "
        "flag is given once for each tier; the variable separates them with ';'.",
        "Host memory to keep more prefixes than the pool holds, a disk to start warm, a remote store to share them.",
    )
    write_back: str = _option(
        "through",
        Text("'through', 'back' or 'selective'", "through|back|selective"),
        "When pages are copied down: as soon as they are full, before they are dropped, or when they are used again.",
        "'back' or 'selective' where a tier is slow or wears out; less survives a crash then.",
    )
    tier_dtype: str = _option(
        "auto",
        Text("'auto', 'int8' or 'float8_e4m3'", "auto|int8|float8_e4m3"),
        "Number format of pages below the device; 'auto' is that of the pool. The others are lossy: half the bytes or "
        "less, and a page that comes back is not quite the one that went.",
        "int8 where tiers are slow or small, and answers may differ a little.",
    )
    load_deadline: float | None = _option(
        10.0,
        Seconds(none="wait as long as it takes"),
        "Seconds until a request computes the pages that have not come from a lower tier.",
        "Lower it where a tier is sometimes slow and answers must not be.",
    )
    eviction: str = _option(
        "lru",
        Text("the name of an eviction policy", _NAME),
        "Which cached page goes first when blocks are needed; 'lru' is the one unused for longest.",
        "When a replay of your own traffic shows more hits with another policy.",
    )
    eviction_threshold: float = _option(
        0.0,
        Share(),
        "Share of free blocks below which reclaim starts in the background; 0 is off: cached pages stay until their "
        "blocks are needed.",
        "With a lower tier, 0.1 keeps blocks ready so that no step waits; without one it only shortens what is cached.",
    )
    pinned_share: float = _option(
        0.5,
        Fraction(),
        "Share of the pool that retentions may pin together; what they want beyond is clipped or refused.",
        "Lower it where clients pin more than is good for the others; 0 allows no pins.",
    )
    quotas: tuple[TenantQuota, ...] = _option(
        (),
        Quotas(),
        "What tenants (the salt of a request's scope) may hold on each tier, and the weight of their fair share. The "
        "flag is given once for each tenant; the variable separates them with ';'.",
        "To keep one tenant's traffic from driving out what others need; docs/retention.md says what is promised.",
    )
    prefix_cache: bool = _option(
        True,
        Flag(),
        "Keep the pages of finished requests and reuse them for prompts that begin alike.",
        "Off to measure without reuse.",
    )
    partial_hits: bool = _option(
        True,
        Flag(),
        "Reuse the common beginning of a page as well, by copying it on write.",
        "Off if prompts part at page borders anyway; it then saves a look-up.",
    )
    max_running: int = _option(
        256,
        Whole(1),
        "Sequences that run at the same time, at most.",
        "Lower it for faster single answers; raise it for more tokens per second if the pool has room.",
    )
    max_batch_tokens: int = _option(
        512,
        Whole(1),
        "Tokens computed in one step, at most; longer prompts are cut into chunks.",
        "Raise it for faster prompts; lower it for steadier gaps between the tokens of running requests.",
    )
    max_waiting: int = _option(
        1024,
        Whole(1),
        "Requests that may wait to run; more are refused at once.",
        "Lower it to refuse early under overload; raise it for large offline batches.",
    )
    demand_paging: str = _option(
        AUTO,
        Text("'auto' or 'off'", "auto|off"),
        "Requests that do not fit into the pool: 'auto' runs them all the same where a tier below can hold the rest of "
        "their pages, which each step then reads from there; 'off' refuses them.",
        "'off' where such a request should fail at once rather than be slow.",
    )
    resident_share: float = _option(
        0.5,
        PositiveFraction(),
        "Share of the pool that a request which does not fit may keep on the device; one that comes beside it may keep "
        "the same share of what is left, and so on.",
        "0.9 where one such request runs at a time: what is kept need not be read again for each token. Lower it to "
        "leave more room to ordinary requests.",
    )
    window: str | int = _option(
        "64MiB",
        Bytes(),
        "Memory through which pages of such requests are read from a disk or a remote tier, a layer at a time.",
        "Raise it where reading waits in spite of a fast tier; an error says the least that a model needs.",
    )
    attend: str = _option(
        "exact",
        AttendText(),
        "How requests attend to their context unless they say so themselves: 'exact', or approximately: answers then "
        "differ from those of the whole context, and say so.",
        "For long contexts where speed matters more than the exact answer; docs/log.md has figures.",
    )
    max_context: int | None = _option(
        None,
        Whole(1, none="the model's own limit"),
        "Tokens of prompt and answer together, at most, per request.",
        "Lower it so that no single request can take the whole pool.",
    )
    attention: str = _option(
        AUTO,
        Text("'auto' or the name of an attention backend", _NAME),
        "What computes attention over the pages; 'auto' is the fastest that works here.",
        "'reference' to check a result against the plain computation.",
    )
    native: str = _option(
        AUTO,
        Text(
            "'auto', 'off', 'portable', 'avx2', 'avx512', 'avx512_bf16' or 'amx'",
            "auto|off|portable|avx2|avx512|avx512_bf16|amx",
        ),
        "Native CPU kernels of the whole process: 'auto' is the best instruction set that the build and the processor "
        "have, 'off' computes with torch.",
        "To find out whether a kernel is to blame: 'off', or a lesser instruction set.",
    )
    fused_layers: bool = _option(
        True,
        Flag(),
        "Native kernels between the matrix products of plain Llama-like layers on a CPU; other models run as they are.",
        "Off to run the model's own modules, for instance to compare.",
    )
    deterministic: bool = _option(
        False,
        Flag(),
        "The same bits with and without prefix hits, preemption and batch mates, at some speed.",
        "On for tests, audits and comparisons of runs.",
    )
    seed: int | None = _option(
        0,
        Whole(0, high=2**64 - 1, none="a fresh one each start"),
        "Seed of the requests that bring none of their own.",
        "To draw other answers from the same prompts.",
    )
    record: str | None = _option(
        None,
        File(none="nothing is recorded"),
        "A new file to record requests in, as a trace for `kvpager replay`: hashes of pages, times and counts, no text "
        "and no tokens.",
        "For a while under your own traffic, to choose the eviction policy and the capacity by it.",
    )
    debug: bool = _option(
        False,
        Flag(),
        f"Poison blocks when they are freed and check them when they are given out. {_DEBUG_ALIAS}=1 is short for it.",
        "On to find a use after free; it costs a write of each freed block.",
    )

    def __post_init__(self) -> None:
        for option in fields(self):
            value = _read_value(option.name, getattr(self, option.name), "argument", is_text=False)
            object.__setattr__(self, option.name, value)


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One row of the table: ``legal`` values in words, ``default`` and how it is ``written``, its ``environment``
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


_KINDS: dict[str, Kind] = {option.name: option.metadata["kind"] for option in fields(Options)}


def list_options() -> tuple[OptionInfo, ...]:
    """The table of options in its order, for help texts and documentation."""
    return tuple(
        OptionInfo(
            name=option.name,
            default=None if option.default is MISSING else option.default,
            legal=_KINDS[option.name].legal,
            meaning=option.metadata["meaning"],
            change=option.metadata["change"],
            written=_written(option.default),
            environment=_variable(option.name),
            flag=_flag(option.name),
            is_switch=isinstance(_KINDS[option.name], Flag),
            is_list=isinstance(_KINDS[option.name], LISTS),
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
        raise ConfigError(f"option {name!r} can't be {shown(value)} ({source}): give {kind.legal}{detail}") from error


def _refuse_unknown(names: Iterable[str], source: str) -> None:
    for name in names:
        if name not in _KINDS:
            raise ConfigError(_unknown(name, list(_KINDS), source))


def _unknown(name: str, known: list[str], source: str) -> str:
    spelled = str(name).replace("-", "_")
    near = difflib.get_close_matches(spelled.upper() if known[0].isupper() else spelled.lower(), known, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return f"unknown option {shown(name)} ({source}); {remedy}"


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _flag(name: str) -> str:
    """A list's flag names one item of it: ``--tier``."""
    spelled = name.removesuffix("s") if isinstance(_KINDS[name], LISTS) else name
    return f"--{spelled.replace('_', '-')}"


def _written(value: object) -> str:
    """A default as a variable would spell it."""
    if value is None or value == ():
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
