"""Many prompts at once through the engine: they share the pages of their common beginning and run in one batch.

Run it: python examples/many_prompts.py [MODEL]   (a folder, a .gguf file, a hub id, or a short name; fetch it before)
"""

import sys

from kvpager.engine import Engine, Sampling

CONTEXT = "A page table maps each page of a sequence to a block of the pool. A block may be shared by many sequences. "
QUESTIONS = ["What is a page table?", "What is a block?", "Who may share a block?", "What does a pool hold?"]


def main(model: str = "smollm2") -> None:
    with Engine(model, capacity="64MiB", max_running=3) as engine:
        prompts = [f"{CONTEXT}\nQuestion: {question}\nAnswer:" for question in QUESTIONS]
        for done in engine.generate(prompts, Sampling(max_tokens=24)):
            print(f"{QUESTIONS[done.index]}  [{done.prefix_tokens} of {done.prompt_tokens} prompt tokens found]")
            print(f"  {' '.join(done.text.split())}\n")

        print("three endings of one prompt; they share its pages until they differ:")
        for done in engine.generate(["Once upon a time"], Sampling(max_tokens=12, n=3, temperature=0.9, seed=1)):
            print(f"  {done.choice}: {' '.join(done.text.split())}")
        print(engine.cache.statistics())


if __name__ == "__main__":
    main(*sys.argv[1:])
