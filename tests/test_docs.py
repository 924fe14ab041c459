"""What the documentation shows is run: its python blocks, file by file and in order, and what they print is compared.

A ```text block that follows a ```python block is what that block prints. A block behind the line <!-- model --> needs
the real model; those of a file run together, in a test of their own; one behind <!-- server --> needs a server, and is
run by tests/server. Links, commands and make targets have to exist.
"""

import contextlib
import io
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kvpager.cli.main import main
from kvpager.integrations.model_layout import SUPPORTED

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w*)\s*$")
MODEL_MARK = "<!-- model -->"
SERVER_MARK = "<!-- server -->"
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")


@dataclass(frozen=True)
class Block:
    """``line``: where its first line stands in the page, counted from 1."""

    language: str
    body: str
    line: int
    needs_model: bool
    needs_server: bool = False
    printed: str | None = None  # what the page says it prints


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page; a text block joins the python block right before it."""
    found: list[Block] = []
    lines = text.splitlines()
    at, prose = 0, ""  # prose: the lines since the last block
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if fence is None:
            prose += lines[at].strip()
            at += 1
            continue
        stop = lines.index("```", at + 1)
        body = "".join(f"{line}\n" for line in lines[at + 1 : stop])
        if fence[1] == "text" and not prose and found and found[-1].language == "python" and not found[-1].printed:
            last = found.pop()
            found.append(replace(last, printed=body))
        else:
            needs = (prose.endswith(MODEL_MARK), prose.endswith(SERVER_MARK))
            found.append(Block(fence[1], body, at + 2, *needs))
        at, prose = stop + 1, ""
    return found


def python_blocks(page: Path, needs_model: bool) -> list[Block]:
    found = blocks_of(page.read_text(encoding="utf-8"))
    python = [block for block in found if block.language == "python" and not block.needs_server]
    return [block for block in python if block.needs_model is needs_model]


def run(page: Path, block: Block, namespace: dict[str, object]) -> str:
    """What the block prints. A traceback names the page and the line."""
    code = compile("\n" * (block.line - 1) + block.body, str(page), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


def run_all(page: Path, needs_model: bool) -> None:
    namespace: dict[str, object] = {"__name__": page.stem}
    for block in python_blocks(page, needs_model):
        printed = run(page, block, namespace)
        if block.printed is not None:
            assert printed == block.printed, f"{_name(page)}, the block in line {block.line}, prints something else"


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page, False)], ids=_name)
def test_the_code_runs_and_prints_what_the_page_shows(page: Path) -> None:
    run_all(page, needs_model=False)


@pytest.mark.model
@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page, True)], ids=_name)
def test_the_code_on_the_real_model_runs_and_prints_what_the_page_shows(page: Path) -> None:
    run_all(page, needs_model=True)


def test_the_start_page_and_the_readme_have_code() -> None:
    assert len(python_blocks(ROOT / "docs/start-here.md", False)) >= 8
    assert python_blocks(ROOT / "README.md", False)
    assert len(python_blocks(ROOT / "README.md", True)) >= 2


def test_a_wrong_output_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n")
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    with pytest.raises(AssertionError, match="line 2"):
        run_all(page, needs_model=False)


def test_blocks_are_read_as_they_stand() -> None:
    text = (
        "# T\n\n```python\na = 1\n```\n\n```text\nout\n```\n\nprose\n\n```text\nnot output\n```\n\n"
        f"{MODEL_MARK}\n```python\nb\n```\n"
    )
    first, drawing, last = blocks_of(text)
    assert (first.body, first.printed, first.line, first.needs_model) == ("a = 1\n", "out\n", 4, False)
    assert (drawing.language, drawing.printed) == ("text", None)
    assert (last.body, last.needs_model) == ("b\n", True)


def anchors_of(page: Path) -> set[str]:
    """The anchors that headings make: lower case, blanks to dashes, other signs left out."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_to_a_page_and_a_heading(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target, anchor in LINK.findall(prose):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{_name(page)} links to {target}"
        assert not anchor or anchor in anchors_of(path), f"{_name(page)} links to {target}#{anchor}"


def test_every_page_can_be_reached_from_the_index() -> None:
    docs = ROOT / "docs"
    seen: set[Path] = set()
    to_visit = [docs / "index.md"]
    while to_visit:
        page = to_visit.pop()
        if page in seen or page.suffix != ".md" or docs not in page.parents:
            continue
        seen.add(page)
        targets = [target for target, _ in LINK.findall(page.read_text(encoding="utf-8")) if target]
        to_visit.extend((page.parent / target).resolve() for target in targets)
    assert sorted(map(_name, seen)) == sorted(_name(page) for page in PAGES if docs in page.parents)


# A path of this repository in code quotes, with or without the part of it that is meant: `cache/step.py: Step`.
SOURCE_NAME = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.py)(?:: ([\w., ]+))?`")


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_files_and_names_of_the_source_exist(page: Path) -> None:
    for path, names in SOURCE_NAME.findall(page.read_text(encoding="utf-8")):
        file = next((base / path for base in (ROOT / "src/kvpager", ROOT) if (base / path).exists()), None)
        assert file is not None, f"{_name(page)} names {path}"
        source = file.read_text(encoding="utf-8")
        for name in filter(None, re.split(r"[., ]+", names)):
            assert re.search(rf"\b(?:class|def) {name}\b|^ *{name}\b.* = ", source, re.MULTILINE), (
                f"{path} has no {name}"
            )


def test_every_command_that_is_shown_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    help_text = io.StringIO()
    with contextlib.redirect_stdout(help_text), contextlib.suppress(SystemExit):
        main(["--help"])
    commands = set(re.findall(r"^  ([a-z]+) ", help_text.getvalue(), re.MULTILINE))
    assert "demo" in targets
    assert "run" in commands
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"(?:`|^\$ )make ([a-z][a-z-]*)", text, re.MULTILINE)) <= targets, _name(page)
        assert set(re.findall(r"(?:`|^\$ )kvpager ([a-z]+)", text, re.MULTILINE)) <= commands, _name(page)
        for wanted in re.findall(r"\.\[([a-z,]+)\]", text):
            assert set(wanted.split(",")) <= extras, _name(page)


def test_the_readme_names_the_supported_models() -> None:
    section = (ROOT / "README.md").read_text().split("\n## Models\n")[1].split("\n## ")[0]
    listed = next(line for line in section.splitlines() if line.startswith("`"))
    assert tuple(re.findall(r"`(\w+)`", listed)) == SUPPORTED
