"""From a name to a model that is ready to run, with its tokenizer and the facts that the engine asks for.

Does not know attention, pages or generation.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvpager.errors import ConfigError
from kvpager.models.hugging_face import first_line
from kvpager.models.plain_read import read_plain
from kvpager.models.read import read_model, read_tokenizer
from kvpager.models.source import ModelSource, resolve

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from kvpager.models.plain_llama import PlainLlama

DTYPES = ("auto", "bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model for inference. ``tokenizer`` is None where its files hold none.

    ``eos_token_ids``: the tokens that end a text, ascending, often one, possibly none. ``max_context``: the longest
    sequence in tokens, prompt and answer together, None where the config sets no limit.
    """

    model: PreTrainedModel | PlainLlama
    tokenizer: PreTrainedTokenizerBase | None
    source: ModelSource
    eos_token_ids: tuple[int, ...]
    max_context: int | None


def load_model(
    name_or_source: str | os.PathLike[str] | ModelSource,
    dtype: str = "auto",
    device: str = "cpu",
    *,
    download: bool = False,
    plain: bool = False,
) -> LoadedModel:
    """Loads the model that a name means (see ``resolve``), or one that was resolved before.

    ``dtype``: "bfloat16", "float16", "float32", or "auto" for what the model's own files say; ``device``: as torch
    names it, such as "cpu" or "cuda:0". Reads local files only unless ``download``; code that comes with a model is
    never run. ``plain``: a PlainLlama will do where it computes the same, which starts faster and takes less memory; it
    has no ``generate`` and no attention of its own.

    Raises ConfigError for a bad ``dtype`` or ``device``; ModelError where the files are missing, damaged or of an
    unknown type; MissingExtra without the packages of [hf].
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is unknown; choose one of {', '.join(DTYPES)}")
    _check_device(device)
    source = name_or_source
    if not isinstance(source, ModelSource):
        source = resolve(os.fspath(source), download=download)
    model: Any = read_plain(source.path, dtype) if plain and source.path.is_dir() else None
    tokenizer = read_tokenizer(source.path, None if model is None else model.config)
    if model is None:
        model = read_model(source.path, dtype)
    return LoadedModel(
        model=model.to(device),
        tokenizer=tokenizer,
        source=source,
        eos_token_ids=_eos_token_ids(model, tokenizer),
        max_context=_max_context(model),
    )


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ValueError, TypeError, NotImplementedError) as error:
        raise ConfigError(f"device {device!r} can't be used here: {first_line(error)}; 'cpu' always can") from error


def _eos_token_ids(model: Any, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """The generation config has the last word, then the config, then the tokenizer."""
    for owner in (model.generation_config, model.config.get_text_config(), tokenizer):
        ids: Any = getattr(owner, "eos_token_id", None)
        if ids is not None:
            return tuple(sorted({int(i) for i in (ids if isinstance(ids, (list, tuple)) else [ids])}))
    return ()


def _max_context(model: Any) -> int | None:
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(limit) if isinstance(limit, int) and limit > 0 else None
