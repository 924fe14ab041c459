"""What a fetched model folder holds, file by file, and where it came from: ``kvpager-manifest.json``.

It is the last file written into a folder, so a folder with a manifest that agrees is whole. Does not know how the files
were made.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from kvpager.errors import ModelError

MANIFEST = "kvpager-manifest.json"
FORMAT = 1  # raised when the conversion changes, so that folders made before are made again


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the folder: its size in bytes and its SHA-256 in hex."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """``package`` and ``version`` carried the GGUF ``gguf`` with SHA-256 ``gguf_sha256``; ``files`` were made of it."""

    format: int
    name: str
    package: str
    version: str
    gguf: str
    gguf_sha256: str
    transformers: str
    files: Mapping[str, FileEntry]

    @property
    def size(self) -> int:
        """All files of the model, bytes."""
        return sum(entry.size for entry in self.files.values())


def describe_files(folder: Path) -> dict[str, FileEntry]:
    """Every file of ``folder`` but the manifest, hashed."""
    paths = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    return {path.name: FileEntry(path.stat().st_size, hash_file(path)) for path in paths}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes it into ``folder``, as JSON."""
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n", "utf-8")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of ``folder``. Raises ModelError if it is missing, damaged or of another format."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text("utf-8"))
        files = {name: FileEntry(int(entry["size"]), str(entry["sha256"])) for name, entry in content["files"].items()}
        manifest = Manifest(**{**content, "files": files})
    except FileNotFoundError as error:
        raise ModelError(f"{folder} is not a whole fetched model: it has no {MANIFEST}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is damaged") from error
    if manifest.format != FORMAT:
        raise ModelError(f"{folder} was made by another version of kvpager")
    return manifest


def find_damage(folder: Path, manifest: Manifest, *, hashes: bool) -> list[str]:
    """What differs from the manifest, a phrase a file; empty if all agrees. Without ``hashes`` only sizes are read."""
    return [
        f"{name} {fault}" for name, entry in manifest.files.items() if (fault := _fault(folder / name, entry, hashes))
    ]


def _fault(path: Path, entry: FileEntry, hashes: bool) -> str:
    if not path.is_file():
        return "is missing"
    if path.stat().st_size != entry.size:
        return f"has {path.stat().st_size} bytes instead of {entry.size}"
    if hashes and hash_file(path) != entry.sha256:
        return "has other content"
    return ""


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
