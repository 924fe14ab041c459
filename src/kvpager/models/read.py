"""From files on this disk to a torch model and a tokenizer. Never reaches the network, never runs a model's own code.

Does not know names, caches or where the files came from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvpager.errors import ModelError
from kvpager.models.folder import has_tokenizer
from kvpager.models.gguf_file import GGUFHeader, read_gguf_header
from kvpager.models.gguf_tokenizer import correct_cuts
from kvpager.models.hugging_face import explained, need, quiet

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_PURPOSE = "loading a model"
_LOCAL = {"local_files_only": True, "trust_remote_code": False}
_REMEDY = "Check that the files belong together and that the installed transformers knows this type of model."
_TOKENIZER_KEY = "tokenizer.ggml.model"
_GENERAL_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
_FILE_TYPE_TO_DTYPE = {0: "float32", 1: "float16"}  # of general.file_type: all F32, mostly F16


def is_gguf(path: Path) -> bool:
    """Whether the name says GGUF."""
    return path.suffix.lower() == ".gguf"


def read_model(path: Path, dtype: str = "auto") -> PreTrainedModel:
    """The causal language model of a folder or a .gguf file, on the CPU, for inference.

    ``dtype``: "auto", "bfloat16", "float16" or "float32". "auto" is what the folder's config or weights say; for a
    GGUF what it holds if that is all F32 or F16, otherwise bfloat16. A GGUF is unpacked to that type.

    Raises ModelError if the files can't be loaded or leave a weight without a value; MissingExtra without [hf].
    """
    transformers = need("transformers", _PURPOSE)
    arguments: dict[str, Any] = {**_LOCAL, "output_loading_info": True}
    if is_gguf(path):
        header = read_gguf_header(path)
        arguments |= {"gguf_file": path.name, "quantization_config": transformers.GgufConfig(dequantize=True)}
        dtype = _gguf_dtype(header) if dtype == "auto" else dtype
    else:
        arguments |= {"use_safetensors": True}
    with quiet(), explained(f"the model {path} can't be loaded", _REMEDY):
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            _folder_of(path), dtype=_torch_dtype(dtype), **arguments
        )
    _check_report(path, report)
    loaded: PreTrainedModel = model.eval()
    return loaded


def read_tokenizer(path: Path, config: Any = None) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a folder or a .gguf file, None if it holds none. Raises ModelError if it can't be loaded.

    ``config``: of the model, if it was read already; transformers would import the model's code to read it.
    """
    transformers = need("transformers", _PURPOSE)
    arguments: dict[str, Any] = dict(_LOCAL)
    header = read_gguf_header(path) if is_gguf(path) else None
    if not (has_tokenizer(path) if header is None else _TOKENIZER_KEY in header.key_to_value):
        return None
    if header is not None:
        arguments["gguf_file"] = path.name
    elif config is not None and _names_its_class(path):
        arguments["config"] = config
    with quiet(), explained(f"the tokenizer of {path} can't be loaded", _REMEDY):
        tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(_folder_of(path), **arguments)
        if header is not None:
            correct_cuts(tokenizer, header)
    return tokenizer


def _names_its_class(folder: Path) -> bool:
    """Whether no more of the model's config is asked for than its type."""
    try:
        content = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        return content.get("tokenizer_class") in _GENERAL_CLASSES and "auto_map" not in content
    except (OSError, ValueError, AttributeError):
        return False


def _folder_of(path: Path) -> Path:
    return path.parent if is_gguf(path) else path


def _gguf_dtype(header: GGUFHeader) -> str:
    return _FILE_TYPE_TO_DTYPE.get(int(header.key_to_value.get("general.file_type", -1)), "bfloat16")


def _torch_dtype(name: str) -> torch.dtype | str:
    import torch

    dtype: torch.dtype | str = name if name == "auto" else getattr(torch, name)
    return dtype


def _check_report(path: Path, report: dict[str, Any]) -> None:
    """transformers fills weights that it doesn't find with random numbers and goes on. Not here."""
    missing = sorted(report["missing_keys"])
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ModelError(
            f"{path} is incomplete: {len(missing)} weights have no value ({shown}). "
            "Give the whole model, of the type that its config names."
        )
