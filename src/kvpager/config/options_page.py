"""The documentation page of the options, made from their tables."""

from collections.abc import Iterable

from kvpager.config.load import list_options, list_server_options
from kvpager.config.table import OptionInfo

_INTRODUCTION = """\
# Options

The engine and every command share these options. Later sources win: the defaults below, then the TOML file given with
`--config` (flat lines, `max_running = 64`), then the environment (`KVPAGER_MAX_RUNNING=64`), then an argument
(`--max-running 64`). An unknown name or an illegal value stops the start with an error that says what is legal.

Sizes are written `2GiB` (powers of 1024), `2GB` (powers of 1000), `2g` (a bare letter is a power of 1024), `80%`, or as
a plain number of bytes. `auto` takes what is free, and on the host respects the memory limit of a container.
`KVPAGER_HOME` is not an option: it is the folder in which fetched models are kept. Kubernetes sets variables named
after its services: call none of them `kvpager`, or set `enableServiceLinks: false`.

This page is made from the tables in `config/options.py` and `config/server_options.py` by `make docs`.

"""
_SERVER = """
## Options of the server

`kvpager serve` takes these as well, from the same sources; other commands pass over them. `KVPAGER_API_KEY` is not an
option: it is a key that the server asks for, and is never shown.

"""
_HEADER = """\
| option | default | legal values | meaning | when to change it |
|---|---|---|---|---|
"""


def options_table() -> str:
    """The page docs/options.md: every option with its default, legal values, meaning and when to change it."""
    return _INTRODUCTION + _table(list_options()) + _SERVER + _table(list_server_options())


def _table(rows: Iterable[OptionInfo]) -> str:
    return _HEADER + "".join(
        f"| `{row.name}` | `{row.written}` | {row.legal} | {row.meaning} | {row.change} |\n" for row in rows
    )
