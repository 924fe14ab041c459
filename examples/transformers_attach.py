"""A Hugging Face model on pages: generate as always; the second prompt finds the beginning it shares with the first.

Run it: python examples/transformers_attach.py [MODEL]   (a folder, a .gguf file, a hub id, or a short name)
"""

import sys

from kvpager.integrations.transformers import attach
from kvpager.models.load import load_model

STORY = "The keeper of the lighthouse wrote down every ship that passed, and in the evening he "
PROMPTS = [STORY + "counted", STORY + "forgot"]


def main(name: str = "smollm2") -> None:
    loaded = load_model(name)
    with attach(loaded.model, capacity="64MiB") as paged:
        for prompt in PROMPTS:
            inputs = loaded.tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
            with paged.open(**inputs) as past:
                output = loaded.model.generate(**inputs, cache=past, max_new_tokens=16, do_sample=False)
            print(" ".join(loaded.tokenizer.decode(output[0], skip_special_tokens=True).split()))
            found = paged.cache.statistics().prefix
            print(f"  [{found.hit_tokens} of {found.prompt_tokens} prompt tokens found so far]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
