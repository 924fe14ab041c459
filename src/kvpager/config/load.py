"""Where options come from: a file, the environment, arguments. The one place that reads the environment for them.

There are two tables, of the engine and of the server. A file and the environment may hold options of both, so that all
commands can share them: each load takes those of its own table, and refuses what no table knows.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvpager.config.options import Options
from kvpager.config.server_options import ServerOptions
from kvpager.config.shown import shown
from kvpager.config.table import DEBUG_ALIAS, ENVIRONMENT_PREFIX, OptionInfo, names, read_value, rows, variable
from kvpager.errors import ConfigError

# Not options: the folder where models are kept, read by models/, and a key that a server asks for, read by server/.
RESERVED_VARIABLES = frozenset({"KVPAGER_HOME", "KVPAGER_API_KEY"})
_ALL_NAMES = (*names(Options), *names(ServerOptions))


def reserved_variables() -> dict[str, str]:
    """Those that are set, for their readers."""
    return {name: os.environ[name] for name in RESERVED_VARIABLES if name in os.environ}


def list_options() -> tuple[OptionInfo, ...]:
    """The table of the engine's options in its order, for help texts and documentation."""
    return rows(Options)


def list_server_options() -> tuple[OptionInfo, ...]:
    """The same for the server's."""
    return rows(ServerOptions)


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
    return Options(**_given(Options, config_path, environ, overrides))


def load_server_options(
    config_path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> ServerOptions:
    """As ``load_options``, for the server's."""
    return ServerOptions(**_given(ServerOptions, config_path, environ, overrides))


def _given(
    table: type,
    config_path: str | os.PathLike[str] | None,
    environ: Mapping[str, str] | None,
    overrides: Mapping[str, object] | None,
) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if config_path is not None:
        given |= _from_file(table, Path(config_path))
    given |= _from_environment(table, os.environ if environ is None else environ)
    given |= _from_overrides(table, overrides or {})
    return given


def _from_file(table: type, path: Path) -> dict[str, object]:
    source = f"file {path}"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config file {path} can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or numbers and nesting without end
        raise ConfigError(f'config file {path} is not TOML: {error}; write lines such as capacity = "2GiB"') from error
    _refuse_unknown(content, _ALL_NAMES, source)
    own = names(table)
    return {
        name: read_value(table, name, value, source, is_text=False) for name, value in content.items() if name in own
    }


def _from_environment(table: type, environ: Mapping[str, str]) -> dict[str, object]:
    given: dict[str, object] = {}
    own = names(table)
    if "debug" in own and environ.get(DEBUG_ALIAS):
        given["debug"] = read_value(table, "debug", environ[DEBUG_ALIAS], f"environment, {DEBUG_ALIAS}", is_text=True)
    for each, text in environ.items():
        if not each.startswith(ENVIRONMENT_PREFIX) or each in RESERVED_VARIABLES or not text:
            continue
        name = each.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name not in _ALL_NAMES or each != variable(name):
            raise ConfigError(_unknown(each, [variable(known) for known in _ALL_NAMES], "environment"))
        if name in own:
            given[name] = read_value(table, name, text, f"environment, {each}", is_text=True)
    return given


def _from_overrides(table: type, overrides: Mapping[str, object]) -> dict[str, object]:
    _refuse_unknown(overrides, names(table), "argument")
    return {
        name: read_value(table, name, value, "argument", is_text=isinstance(value, str))
        for name, value in overrides.items()
        if value is not None
    }


def _refuse_unknown(given: Iterable[str], known: tuple[str, ...], source: str) -> None:
    for name in given:
        if name not in known:
            raise ConfigError(_unknown(name, list(known), source))


def _unknown(name: str, known: list[str], source: str) -> str:
    spelled = str(name).replace("-", "_")
    near = difflib.get_close_matches(spelled.upper() if known[0].isupper() else spelled.lower(), known, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return f"unknown option {shown(name)} ({source}); {remedy}"
