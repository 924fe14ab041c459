"""Importing the package costs nothing, and a missing library is named with the extra that brings it."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvpager.errors import MissingExtra
from kvpager.models.hugging_face import need
from kvpager.models.load import load_model


def test_importing_it_imports_nothing_heavy() -> None:
    code = (
        "import sys, kvpager.models.load, kvpager.models.fetch, kvpager.models.source\n"
        "print([name for name in ('torch', 'transformers', 'gguf', 'huggingface_hub') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(("package", "file"), [("transformers", "folder"), ("gguf", "gguf_file")])
def test_a_missing_library_names_its_extra(
    package: str, file: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    path: Path = request.getfixturevalue(file)
    load_model(path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"pip install 'kvpager\[hf\]'"):
        load_model(path)


def test_a_library_that_is_here() -> None:
    assert need("json", "reading") is sys.modules["json"]
