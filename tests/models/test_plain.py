"""A plain Llama is read without transformers' modelling code, and is the same model; anything else is left to it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

from kvpager import native
from kvpager.errors import InvariantError, ModelError
from kvpager.integrations.attention_function import attending, paged_attention
from kvpager.integrations.fingerprint import fingerprint_of
from kvpager.integrations.model_layout import layout_for
from kvpager.models.load import load_model
from kvpager.models.plain_llama import PlainLlama
from kvpager.models.plain_read import is_plain, read_plain
from tests.tiny_model import tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model(tie_word_embeddings=True).save_pretrained(tmp_path)
    return tmp_path


def content(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


class Causal:
    """Stands for attention over pages."""

    def __init__(self, model: Any) -> None:
        self.layout = layout_for(model.config, dtype="float32")

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: Any) -> Tensor:
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(query, key, value, is_causal=True, scale=options.scale).transpose(1, 2)


def logits(model: Any, **more: Any) -> Tensor:
    ids, positions = torch.arange(20)[None] * 7, torch.arange(20)[None]
    with torch.inference_mode(), attending(Causal(model)), paged_attention(model):
        found: Tensor = model(input_ids=ids, position_ids=positions, use_cache=False, **more).logits
    return found


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "two-heads"])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_it_is_the_same_model_to_the_bit(dtype: str, is_tied: bool, tmp_path: Path) -> None:
    tiny_model(tie_word_embeddings=is_tied).save_pretrained(tmp_path)
    found, theirs = load_model(tmp_path, dtype, plain=True), load_model(tmp_path, dtype)
    assert isinstance(found.model, PlainLlama)
    assert not isinstance(theirs.model, PlainLlama)
    assert found.model.dtype == theirs.model.dtype
    assert not found.model.training
    assert [name for name, _ in found.model.named_parameters()] == [name for name, _ in theirs.model.named_parameters()]
    assert torch.equal(logits(found.model), logits(theirs.model))
    kept = torch.tensor([3, 19])
    assert torch.equal(logits(found.model, logits_to_keep=kept), logits(theirs.model, logits_to_keep=kept))
    assert fingerprint_of(found.model) == fingerprint_of(theirs.model)  # so each finds the other's pages
    assert (found.eos_token_ids, found.max_context) == (theirs.eos_token_ids, theirs.max_context)


def test_what_config_json_leaves_out_means_the_same(folder: Path) -> None:
    sparse = content(folder)
    for name, value in LlamaConfig().to_dict().items():
        if name in sparse and name in (
            "attention_bias",
            "attention_dropout",
            "mlp_bias",
            "pretraining_tp",
            "use_cache",
        ):
            assert sparse.pop(name) == value
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range"):
        sparse.pop(name)
    (folder / "config.json").write_text(json.dumps(sparse))
    (folder / "generation_config.json").unlink()
    found, theirs = load_model(folder, plain=True), load_model(folder)
    assert isinstance(found.model, PlainLlama)
    assert found.eos_token_ids == theirs.eos_token_ids == (2,)
    assert fingerprint_of(found.model) == fingerprint_of(theirs.model)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mistral"},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {"rope_scaling": {"type": "linear"}},
        {"head_dim": 15},
        {"num_key_value_heads": 3},
        {"rms_norm_eps": None},
        {"tie_word_embeddings": None},
        {"quantization_config": {}},
        {"logit_scale": 2.0},
    ],
    ids=str,
)
def test_a_config_that_asks_for_more_is_left_to_transformers(change: dict[str, Any], folder: Path) -> None:
    assert is_plain(content(folder))
    assert not is_plain(content(folder) | change)


def test_a_tensor_too_many_or_too_few_is_left_to_transformers(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert read_plain(folder) is not None
    save_file(weights | {"more": torch.ones(1)}, folder / "model.safetensors", metadata={"format": "pt"})
    assert read_plain(folder) is None
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert read_plain(folder) is None
    with pytest.raises(ModelError, match="1 weights have no value"):
        load_model(folder, plain=True)


def test_without_pages_it_does_not_run(folder: Path) -> None:
    model = load_model(folder, plain=True).model
    logits(model)  # the control
    with pytest.raises(InvariantError, match="without attention"):
        model(torch.arange(3)[None], torch.arange(3)[None])


@pytest.mark.skipif(native.module() is None, reason=f"no native kernels: {native.why_not()}")
def test_an_engine_runs_it_without_what_makes_a_start_slow(folder: Path) -> None:
    code = (
        "import sys\n"
        "from kvpager.engine import Engine, Sampling\n"
        f"with Engine({str(folder)!r}, num_blocks=16, fused_layers={{}}) as engine:\n"
        "    print([c.token_ids for c in engine.generate([[5, 6, 7]], Sampling(max_tokens=8, ignore_eos=True))])\n"
        "heavy = ('transformers.modeling_utils', 'torch._dynamo', 'sympy', 'accelerate')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    lean, theirs = (
        subprocess.run([sys.executable, "-c", code.format(fused)], capture_output=True, text=True, check=True).stdout
        for fused in (True, False)
    )
    assert lean.splitlines()[0] == theirs.splitlines()[0] != "[]"
    assert lean.splitlines()[1] == "[]"
    assert "transformers.modeling_utils" in theirs.splitlines()[1]
