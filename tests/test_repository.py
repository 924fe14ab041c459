"""Habits of the repository that a reader relies on: documentation in step with the code, a light import, a lock."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kvpager
from kvpager import errors
from kvpager.config import options_table

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "kvpager"
MODULES = sorted(SOURCE.rglob("*.py"))
PUBLIC = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*"), *ROOT.glob("csrc/**/*"), *MODULES]
    + [ROOT / name for name in ("Makefile", "constraints.txt", "pyproject.toml", "mkdocs.yml", "CITATION.cff")]
    + [ROOT / name for name in (".ci/run", ".pre-commit-config.yaml", ".editorconfig")]
)
READS_ENVIRONMENT = {"config", "models"}  # load_options, and KVPAGER_HOME

MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:work|root|home|Users|mnt|scratch)/")
PACKAGE_HOST = re.compile(
    r"\b[\w.-]*(?:pypi|pythonhosted|registry|artifactory|devpi|conda|mirror|download\.pytorch)[\w-]*\.[a-z]{2,}\b(?!\()"
    r"|--(?:extra-)?index-url|--find-links|--trusted-host",
    re.IGNORECASE,
)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _pyproject() -> dict[str, dict[str, object]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


# -------------------------------------------------------------------------------------------------- documentation


def test_the_options_page_is_the_table() -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    assert page == options_table(), "docs/options.md is out of date: run `make docs`"


@pytest.mark.parametrize("path", [path for path in PUBLIC if path.is_file()], ids=_name)
def test_no_path_of_a_machine_and_no_package_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert MACHINE_PATH.findall(text) == []
    assert PACKAGE_HOST.findall(text) == []


@pytest.mark.parametrize("text", ["see /home/me/x", "cd /mnt/kv", "`/scratch/x`"])
def test_the_path_pattern_finds_what_it_should(text: str) -> None:
    assert MACHINE_PATH.search(text)
    assert not MACHINE_PATH.search("~/scratch/x, https://host.example/home/x, /nvme/kv, src/scratch/x")


@pytest.mark.parametrize("text", ["https://my-pypi.example.org/simple", "pip --extra-index-url x", "registry.example"])
def test_the_host_pattern_finds_what_it_should(text: str) -> None:
    assert PACKAGE_HOST.search(text)
    assert not PACKAGE_HOST.search("a package of PyPI. The registry (of policies) is a dict; policy_registry.add(x)")


@pytest.mark.parametrize("path", [path for path in PUBLIC if path.suffix == ".md"], ids=_name)
def test_links_between_pages_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_every_module_says_what_it_does(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{_name(path)} has no docstring"


# ----------------------------------------------------------------------------------------------------- public names


def test_every_public_error_is_exported() -> None:
    tree = {name for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, Exception)}
    assert tree <= set(kvpager.__all__)
    assert all(getattr(kvpager, name) is getattr(errors, name) for name in tree)
    assert all(issubclass(getattr(errors, name), errors.KVPagerError) for name in tree)


def test_every_exported_name_exists() -> None:
    assert [name for name in kvpager.__all__ if not hasattr(kvpager, name)] == []


@pytest.mark.parametrize("module", ["kvpager", "kvpager.config"])
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'torch', 'transformers', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200)
    assert done.stdout.split() == []


def test_only_one_function_reads_the_environment() -> None:
    readers = [
        _name(path)
        for path in MODULES
        if re.search(r"\bos\.(environ|getenv)\b|from os import .*\b(environ|getenv)\b", path.read_text())
        and path.relative_to(SOURCE).parts[0] not in READS_ENVIRONMENT
    ]
    assert readers == []


# ---------------------------------------------------------------------------------------------------------- set-up


def _normal(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0].lower().replace("_", "-").replace(".", "-")


def test_the_lock_has_every_dependency_in_one_exact_version() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line)] == []
    locked = [_normal(line) for line in lines]
    assert len(locked) == len(set(locked))
    project = _pyproject()["project"]
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    wanted = {_normal(item) for extra in extras.values() for item in extra} | {_normal("numpy")}
    assert wanted - {"kvpager"} <= set(locked)
    assert "torch" not in locked  # pinned by the Makefile, because its build depends on the machine


def test_the_makefile_pins_torch_as_pyproject_allows() -> None:
    pinned = re.search(r"^TORCH \?= torch==(\d+)\.(\d+)\.\d+$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert pinned is not None
    assert (int(pinned[1]), int(pinned[2])) >= (2, 11)


def test_the_check_before_a_change_is_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text().splitlines() if "make" in line and not line.startswith("#")]
    assert commands == ["exec make test </dev/null"]


def test_the_versions_agree() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {kvpager.__version__}\n" in citation
