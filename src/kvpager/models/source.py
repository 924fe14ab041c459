"""From what a user calls a model to checked files on this disk.

A short name always means that short name (write ``./smollm2`` for a folder called so); then a path that exists; then
``org/name``, a model of the hub, from the same cache that transformers uses. Does not load anything, and reaches the
network only when told to.
"""

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvpager.errors import ModelError
from kvpager.models.catalog import RECIPES, find_recipe
from kvpager.models.fetch import fetch_model, find_fetched
from kvpager.models.folder import check_folder
from kvpager.models.gguf_file import read_gguf_header
from kvpager.models.hugging_face import first_line, need
from kvpager.models.read import is_gguf

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}", re.ASCII)
_HUB_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
_HUB_SUBFOLDERS = "*/*"  # other formats of the same weights


class SourceKind(StrEnum):
    """What the user named."""

    FOLDER = "folder"
    GGUF = "gguf"
    SHORT_NAME = "short name"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model whose files are here and whole: ``name`` as the user gave it, ``path`` a model folder or a .gguf file."""

    name: str
    kind: SourceKind
    path: Path


def resolve(name: str, *, download: bool = False) -> ModelSource:
    """The files that ``name`` means: a model folder, a .gguf file, a short name such as 'smollm2', or 'org/name'.

    With ``download`` a short name or a hub id that is not here yet is fetched first. Weights are not read, but every
    file is held against its own header, so that a truncated download is found now.

    Raises ModelError, naming the file or name, what is wrong and what to do; MissingExtra for a .gguf file or a hub id
    where the package that reads it is not installed.
    """
    if not name.strip() or "\0" in name:
        raise ModelError(
            f"{name!r} is not the name of a model; give a folder, a .gguf file, a short name or 'org/name'"
        )
    if name in RECIPES:
        folder = fetch_model(name) if download else find_fetched(name)
        return _checked_folder(name, SourceKind.SHORT_NAME, folder)
    path = Path(name).expanduser() if name.startswith("~") else Path(name)
    if os.path.lexists(path):
        return _resolve_path(name, path)
    if _looks_like_path(name):
        raise ModelError(f"there is no model at {name}: the path does not exist. Check it for a slip of the pen.")
    if _HUB_ID.fullmatch(name):
        return _checked_folder(name, SourceKind.HUB, _find_in_hub(name, download))
    find_recipe(name)
    raise AssertionError("a short name that is known was handled above")


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1 or is_gguf(Path(name))


def _resolve_path(name: str, path: Path) -> ModelSource:
    path = path.absolute()
    if path.is_dir():
        return _checked_folder(name, SourceKind.FOLDER, path)
    if is_gguf(path):
        read_gguf_header(path)
        return ModelSource(name, SourceKind.GGUF, path)
    raise ModelError(f"{path} is not a model: a model is a folder with config.json and *.safetensors, or a .gguf file")


def _checked_folder(name: str, kind: SourceKind, folder: Path) -> ModelSource:
    try:
        check_folder(folder)
    except OSError as error:
        raise ModelError(f"{folder} can't be read: {error.strerror}. Check its permissions.") from error
    return ModelSource(name, kind, folder)


def _find_in_hub(repository: str, download: bool) -> Path:
    """The folder in the hub's own cache. Any failure means that the model is not here and can't be had now."""
    hub = need("huggingface_hub", "a model of the hub")
    try:
        folder = hub.snapshot_download(
            repository,
            local_files_only=not download,
            allow_patterns=list(_HUB_FILES),
            ignore_patterns=[_HUB_SUBFOLDERS],
        )
    except Exception as error:
        raise ModelError(_not_here(repository, download, first_line(error))) from error
    return Path(folder)


def _not_here(repository: str, download: bool, reason: str) -> str:
    get = f"`hf download {repository}` where there is a network"
    if download:
        return (
            f"the model {repository!r} could not be downloaded from the hub: {reason}. Check the name, the network and "
            f"the access rights, or run {get} and bring the hub's cache folder here."
        )
    return (
        f"{repository!r} is neither a path that exists nor a model in the hub's cache on this machine. If it is a "
        f"path, check it; if it is a model of the hub, get it with {get}, or ask for the download with download=True."
    )
