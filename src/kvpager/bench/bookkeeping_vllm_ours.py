"""Our side of the comparison with vLLM: the same operations, answered alike (bench/peers/vllm_bookkeeping.py).

Each operation is what the engine does with its cache, for all sequences of a step at once:

    request   nothing: a sequence is made when it is admitted
    admit     sequence() of each prompt (its ids become int32, its prefix is looked up), then step_over() of at most
              ``step`` tokens of all of them; closing the step makes full pages findable
    append    append() of one token to each sequence, then one step_over(), which publishes pages that are full now
    lookup    lookup() of a prompt and one token more, from a list of ids
    find      lookup() of the same ids as an int32 array
    free      free() of one sequence after the other; ``free_together``: one call for all

Content keys (SHA-256) are not computed for any of it: a look-up compares the content of pages itself, and keys are made
where something asks for them, a lower tier or another eviction policy than LRU.
"""

import gc
import hashlib
import random
import time
from array import array

import numpy as np

from kvpager.assemble import open_cache
from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.sequence import Sequence
from kvpager.memory.layout import KVLayout

VOCABULARY = 32_000
Answer = dict[str, object]


class OurBookkeeper:
    """One cache and the sequences of one round."""

    def __init__(self) -> None:
        self.cache: PagedCache | None = None
        self.prompts: list[list[int]] = []
        self.sequences: list[Sequence] = []

    def open(self, num_blocks: int, page: int, max_tokens: int, prefix_cache: bool) -> Answer:
        self.close()
        layout = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="bfloat16", page_size=page)
        self.cache = open_cache(
            layout,
            num_blocks=num_blocks,
            prefix_cache=prefix_cache,
            match_inside_pages=False,  # vLLM shares whole blocks only
            eviction="lru",  # as vLLM
        )
        self.sequences = []
        gc.collect()
        gc.disable()
        return {"free": self._free_blocks(self.cache)}

    def close(self) -> None:
        """What is measured allocates nothing that only a collection of garbage could free; others may want one."""
        gc.enable()
        if self.cache is not None:
            self.cache.close()
        self.cache = None

    def make(self, count: int, tokens: int, seed: int) -> Answer:
        self.prompts = []
        draw, ids = random.Random(seed), list(range(VOCABULARY))
        digest = hashlib.sha256()
        for _ in range(count):
            self.prompts.append(draw.choices(ids, k=tokens))
            digest.update(array("i", self.prompts[-1]).tobytes())
        return {"digest": digest.hexdigest()}

    def request(self) -> Answer:
        return {"seconds": 0.0}

    def admit(self, step: int) -> Answer:
        cache = self._cache()
        begin = time.thread_time()
        waiting, running = self.prompts[::-1], list[Sequence]()
        self.sequences, left = [], 0
        while waiting or left:
            room, counts = step, list[int]()
            if left:
                counts.append(min(room, left))
            else:
                running = []
            while waiting and (not running or sum(counts) < room):
                prompt = waiting[-1]
                if counts and sum(counts) + len(prompt) > room:
                    break
                seq = cache.sequence(waiting.pop())
                self.sequences.append(seq)
                running.append(seq)
                left = len(prompt) - seq.prefix_tokens
                counts.append(min(room - sum(counts), left))
            with cache.step_over(running, np.array(counts, np.int64)):
                pass
            left -= counts[-1]
            running = running[-1:]
        seconds = time.thread_time() - begin
        hits = [seq.prefix_tokens for seq in self.sequences]
        return {"seconds": seconds, "hits": hits, "blocks": self._num_blocks(), "free": self._free_blocks(cache)}

    def append(self, steps: int, token: int) -> Answer:
        cache, sequences, ones = self._cache(), self.sequences, np.ones(len(self.sequences), np.int64)
        seconds = []
        for each in range(token, token + steps):
            begin = time.thread_time()
            for seq in sequences:
                seq.append(each)
            with cache.step_over(sequences, ones):
                pass
            seconds.append(time.thread_time() - begin)
        return {
            "seconds": sum(seconds),
            "steps": seconds,
            "blocks": self._num_blocks(),
            "free": self._free_blocks(cache),
        }

    def lookup(self) -> Answer:
        cache, asked = self._cache(), [[*prompt, 1] for prompt in self.prompts]
        begin = time.thread_time()
        hits = [cache.lookup(prompt).num_tokens for prompt in asked]
        return {"seconds": time.thread_time() - begin, "hits": hits}

    def find(self) -> Answer:
        cache, asked = self._cache(), [array("i", [*prompt, 1]) for prompt in self.prompts]
        begin = time.thread_time()
        hits = [cache.lookup(prompt).num_tokens for prompt in asked]
        return {"seconds": time.thread_time() - begin, "hits": hits}

    def free(self) -> Answer:
        begin = time.thread_time()
        for seq in self.sequences:
            seq.free()
        return self._freed(time.thread_time() - begin)

    def free_together(self) -> Answer:
        cache = self._cache()
        begin = time.thread_time()
        cache.free(self.sequences)
        return self._freed(time.thread_time() - begin)

    def _freed(self, seconds: float) -> Answer:
        self.sequences = []
        return {"seconds": seconds, "free": self._free_blocks(self._cache())}

    def _cache(self) -> PagedCache:
        assert self.cache is not None
        return self.cache

    def _num_blocks(self) -> list[int]:
        return [len(seq.tables[0]) for seq in self.sequences]

    @staticmethod
    def _free_blocks(cache: PagedCache) -> int:
        """As vLLM counts: free ones, and cached ones that nobody uses."""
        counts = cache.pool.counts()
        return counts.free + counts.cached
