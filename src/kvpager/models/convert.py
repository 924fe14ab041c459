"""From a GGUF to an ordinary model folder, once: bf16 safetensors, tokenizer, chat template, generation config.

The result is loaded again and must be the same weights, the facts of the recipe, a tokenizer that gives every text back
and the expected next word. Does not know where the GGUF came from or where the folder will stand.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvpager.errors import ModelError
from kvpager.models.catalog import Facts, Recipe
from kvpager.models.folder import check_folder
from kvpager.models.hugging_face import explained, need, quiet
from kvpager.models.read import read_model, read_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_DTYPE = "bfloat16"
_NOTE = "LICENSE-NOTE.md"
_ROUND_TRIPS = (
    "The quick brown fox.",
    "  two spaces,\ttab\n\n\tlines  7 and 2026 ",
    "don't stop: caf\u00e9, \u65e5\u672c\u8a9e, \U0001f642",
)


def convert_gguf(gguf: Path, folder: Path, recipe: Recipe) -> None:
    """Writes the model folder of ``gguf`` into the empty ``folder`` and proves that it loads as the recipe says.

    Raises ModelError where anything differs; what was written is then worthless.
    """
    model, tokenizer = read_model(gguf, _DTYPE), read_tokenizer(gguf)
    if tokenizer is None:
        raise ModelError(f"{gguf} carries no tokenizer, so no model folder can be made of it")
    _tidy(model, tokenizer, recipe)
    with quiet(), explained(f"the model folder {folder} can't be written", "Check that the disk has room."):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / _NOTE).write_text(_license_note(gguf, recipe), "utf-8")
        _unify_permissions(folder)
    _check(folder, model, recipe)


def _tidy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, recipe: Recipe) -> None:
    """Says outright what a GGUF leaves to guesses: the longest input, and the tokens that generation needs."""
    config = model.config
    tokenizer.model_max_length = recipe.facts.max_context
    model.generation_config = need("transformers", "converting a model").GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )


def _unify_permissions(folder: Path) -> None:
    """All files as the user's umask has it; safetensors writes for the owner alone, which no shared folder wants."""
    mode = (folder / _NOTE).stat().st_mode
    for path in folder.iterdir():
        path.chmod(mode)


def _license_note(gguf: Path, recipe: Recipe) -> str:
    return (
        f"{recipe.license_note}\n\nThis folder was made by kvpager from {gguf.name}, as carried by the Python package "
        f"{recipe.package} {recipe.version}: the quantised weights were unpacked to {_DTYPE} and are otherwise "
        "unchanged, so they are those of the quantised model, not of the original one.\n"
    )


def _check(folder: Path, converted: PreTrainedModel, recipe: Recipe) -> None:
    check_folder(folder)
    model, tokenizer = read_model(folder), read_tokenizer(folder)
    if tokenizer is None:
        raise ModelError(f"{folder} was written without a tokenizer")
    faults = [
        *_weight_faults(model, converted),
        *_fact_faults(_facts_of(model, tokenizer), recipe.facts),
        *_tokenizer_faults(tokenizer, recipe),
        *_answer_faults(model, tokenizer, recipe),
    ]
    if faults:
        raise ModelError(f"the conversion of {recipe.name!r} went wrong and is thrown away: {'; '.join(faults)}")


def _weight_faults(model: PreTrainedModel, converted: PreTrainedModel) -> list[str]:
    ours, theirs = model.state_dict(), converted.state_dict()
    if ours.keys() != theirs.keys():
        return ["the written weights have other names"]
    return [f"weight {name} changed" for name in ours if not ours[name].equal(theirs[name])]


def _facts_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Facts:
    config = model.config
    ids = [model.generation_config.bos_token_id, model.generation_config.eos_token_id]
    bos, eos = tokenizer.convert_ids_to_tokens(ids)
    return Facts(
        layers=config.num_hidden_layers,
        query_heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        max_context=config.max_position_embeddings,
        bos=bos,
        eos=eos,
    )


def _fact_faults(found: Facts, expected: Facts) -> list[str]:
    return [] if found == expected else [f"it is {found}, not {expected}"]


def _tokenizer_faults(tokenizer: PreTrainedTokenizerBase, recipe: Recipe) -> list[str]:
    faults = [f"the tokenizer changes {text!r}" for text in _ROUND_TRIPS if _round_trip(tokenizer, text) != text]
    if tokenizer.eos_token != recipe.facts.eos or tokenizer.bos_token != recipe.facts.bos:
        faults.append(f"the tokenizer begins with {tokenizer.bos_token!r} and ends with {tokenizer.eos_token!r}")
    if recipe.greeting is not None:
        chat = [{"role": "user", "content": "Hi"}]
        if tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) != recipe.greeting:
            faults.append("the chat template renders another text")
    return faults


def _round_trip(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    return str(tokenizer.decode(tokenizer(text)["input_ids"], clean_up_tokenization_spaces=False))


def _answer_faults(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, recipe: Recipe) -> list[str]:
    """Whether the likeliest next token is the recipe's: one forward pass."""
    import torch

    if not recipe.prompt:
        return []
    tokens = torch.tensor([tokenizer(recipe.prompt)["input_ids"]])  # [1, prompt tokens]
    with torch.inference_mode():
        likeliest = int(model(tokens).logits[0, -1].argmax())
    answer = tokenizer.decode([likeliest])
    return [] if answer == recipe.answer else [f"after {recipe.prompt!r} it says {answer!r}"]
