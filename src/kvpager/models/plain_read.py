"""A model folder that holds a plain Llama, read without importing transformers' modelling code.

Whether it does is asked strictly: of every name in config.json it must be known what it changes, and every tensor must
be there, with its shape, and none beside. Of whatever is not so, or is damaged, nothing is said here: transformers
reads it, and explains. What this saves: see plain_llama.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvpager.errors import KVPagerError
from kvpager.models.folder import weight_files
from kvpager.models.hugging_face import need, quiet

if TYPE_CHECKING:
    import torch

    from kvpager.models.plain_llama import PlainLlama

_MODEL_TYPE = "llama"
_REQUIRED: dict[str, tuple[object, ...]] = {
    "model_type": (_MODEL_TYPE,),
    "architectures": (["LlamaForCausalLM"],),
    "hidden_act": ("silu",),
}
_ONLY_SO: dict[str, tuple[object, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "pretraining_tp": (1, None),
    "rope_scaling": (None,),
}
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
)
_NUMBERS = ("rms_norm_eps", "max_position_embeddings")
_CHANGES_NO_LOGITS = frozenset(
    (
        *("_name_or_path", "_model_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "initializer_range", "attention_dropout"),
    )
)
_KNOWN = frozenset((*_REQUIRED, *_ONLY_SO, *_SIZES, *_NUMBERS, *_CHANGES_NO_LOGITS, "head_dim", "rope_parameters")) | {
    "tie_word_embeddings"
}
_DEFAULTS: dict[str, object] = {  # of transformers' LlamaConfig; what config.json leaves out means these
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.02,
    "mlp_bias": False,
    "pad_token_id": None,
    "pretraining_tp": 1,
}
_DTYPES = ("bfloat16", "float16", "float32")


def read_plain(folder: Path, dtype: str = "auto") -> PlainLlama | None:
    """The model of a folder on the CPU, its parameters as they lie in the files; None: let transformers read it.

    Raises MissingExtra without [hf]."""
    try:
        content = _read_config(folder)
        name = str(content.get("dtype", content.get("torch_dtype"))) if dtype == "auto" else dtype
        if not is_plain(content) or name not in _DTYPES:
            return None
        with quiet():
            return _assemble(config_of(content, name), _generation_config(folder), _read_weights(folder))
    except (KVPagerError, MemoryError):
        raise
    except Exception:  # as many types of exceptions as there are ways in which a file can be wrong
        return None


def is_plain(content: dict[str, Any]) -> bool:
    """Whether this config.json asks for nothing that PlainLlama does not compute."""
    rope = content.get("rope_parameters")
    return (
        content.keys() <= _KNOWN
        and all(content.get(name) in values for name, values in _REQUIRED.items())
        and all(content[name] in values for name, values in _ONLY_SO.items() if name in content)
        and all(type(content.get(name)) is int and content[name] > 0 for name in _SIZES)
        and all(type(content.get(name)) in (int, float) and content[name] > 0 for name in _NUMBERS)
        and type(content.get("tie_word_embeddings")) is bool
        and type(content.get("head_dim")) is int
        and content["head_dim"] > 0
        and content["head_dim"] % 2 == 0
        and content["num_attention_heads"] % content["num_key_value_heads"] == 0
        and isinstance(rope, dict)
        and rope.keys() == {"rope_type", "rope_theta"}
        and rope["rope_type"] == "default"
        and type(rope["rope_theta"]) in (int, float)
    )


def config_of(content: dict[str, Any], dtype: str) -> Any:
    """What transformers' own config of this type holds; importing that one brings the modelling code along."""
    base = need("transformers", "loading a model").PreTrainedConfig
    kind = type("LlamaConfig", (base,), {"model_type": _MODEL_TYPE})
    given = {name: value for name, value in content.items() if name not in ("model_type", "torch_dtype", "dtype")}
    found = kind(**{**_DEFAULTS, **given, "dtype": dtype})
    found.use_cache = content.get("use_cache", True)  # which is no option of every model
    return found


def _read_config(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "config.json").read_text("utf-8"))
    return content if isinstance(content, dict) else {}


def _generation_config(folder: Path) -> Any:
    if not (folder / "generation_config.json").exists():
        return None
    return need("transformers", "loading a model").GenerationConfig.from_pretrained(folder, local_files_only=True)


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in weight_files(folder):
        with need("safetensors", "loading a model").safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    return found


def _assemble(config: Any, generation: Any, weights: dict[str, torch.Tensor]) -> PlainLlama | None:
    import torch

    from kvpager.models.plain_llama import PlainLlama

    with torch.device("meta"):
        model = PlainLlama(config)
    shapes = {name: each.shape for name, each in model.named_parameters()}
    if shapes != {name: each.shape for name, each in weights.items()}:
        return None
    if not all(each.is_floating_point() for each in weights.values()):
        return None
    state = {name: each.to(config.dtype) for name, each in weights.items()}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    model.tie()
    model.generation_config = generation
    return model.eval()
