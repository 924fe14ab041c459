"""Whether a model folder is whole: config.json is readable and every file of weights is there, to its last byte.

Reads headers, not weights. Does not know transformers, or whether kvpager can run the model.
"""

import json
from pathlib import Path
from typing import Any

from kvpager.errors import ModelError
from kvpager.models.safetensors_file import check_safetensors

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)


def check_folder(folder: Path) -> None:
    """Raises ModelError, naming the file, what is wrong and what to do, unless ``folder`` holds a whole model."""
    if not any(folder.iterdir()):
        raise ModelError(f"the model folder {folder} is empty; put config.json and the *.safetensors files in it")
    _check_config(folder)
    for path in weight_files(folder):
        check_safetensors(path)


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder holds any file of a tokenizer."""
    return any((folder / name).exists() for name in _TOKENIZER_FILES)


def _check_config(folder: Path) -> None:
    path = folder / "config.json"
    if not path.exists():
        raise ModelError(f"{folder} is not a model folder: it has no config.json. {_hint_for(folder)}")
    config = _read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(f"{path} doesn't describe a model: it names no 'model_type'. Copy the model's own file again.")


def _hint_for(folder: Path) -> str:
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if ggufs:
        return f"It has GGUF files: give one of them itself, such as {folder / ggufs[0]}"
    return "Give the folder that holds config.json and the *.safetensors files."


def weight_files(folder: Path) -> list[Path]:
    """The files transformers would read, in its order of preference. Raises ModelError if there are none."""
    if (folder / _WEIGHTS).exists():
        return [folder / _WEIGHTS]
    if (folder / _INDEX).exists():
        return [_part(folder, name) for name in _indexed_names(folder / _INDEX)]
    if list(folder.glob("*.bin")) or list(folder.glob("*.pt")) or list(folder.glob("*.pth")):
        raise ModelError(
            f"{folder} has its weights as pickles (.bin, .pt), which can run code and are not read; "
            "convert them with the model's `save_pretrained`, which writes safetensors"
        )
    raise ModelError(f"{folder} has no weights: neither {_WEIGHTS} nor {_INDEX}. Download or copy the model again.")


def _indexed_names(index: Path) -> list[str]:
    content = _read_json(index)
    weights = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not weights or not all(isinstance(name, str) for name in weights.values()):
        raise ModelError(f"{index} is damaged: it has no 'weight_map' from tensors to files. Copy the file again.")
    return sorted(set(weights.values()))


def _part(folder: Path, name: str) -> Path:
    if name != Path(name).name:
        raise ModelError(f"{folder / _INDEX} names a file outside its folder, {name!r}; such a model is not loaded")
    if not (folder / name).exists():
        raise ModelError(f"{folder} is incomplete: {name}, named by {_INDEX}, is missing. Download that file too.")
    return folder / name


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}. Check its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is damaged: it is not JSON ({error}). Download or copy the file again.") from error
