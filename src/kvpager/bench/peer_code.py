"""A digest of the code that a comparison of engines measures: of every module of kvpager and its native part.

Two runs are of the same code where their digests are equal, whether it is installed, built anew or edited in place.
Knows no version number and no repository: an edit that was not committed changes the digest as well.
"""

import hashlib
from importlib.util import find_spec
from pathlib import Path

import kvpager

_NATIVE = "kvpager._native"


def code_digest() -> str:
    """A dozen hexadecimal digits."""
    folder = Path(kvpager.__file__).parent
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")}
    native = find_spec(_NATIVE)
    if native is not None and native.origin is not None:
        files[_NATIVE] = Path(native.origin)  # an editable installation builds it elsewhere
    found = hashlib.sha256()
    for name, path in sorted(files.items()):
        found.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:12]
