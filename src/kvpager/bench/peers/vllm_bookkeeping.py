"""vLLM's KVCacheManager, driven by operations that come as JSON lines; each answer is one line too.

Run by the interpreter of vLLM's own environment (bench/bookkeeping_vllm.py does it); imports nothing of kvpager. What
it does for each operation is what vLLM's scheduler does with its manager, request by request:

    request   Request(...) with its block hashes, where prefix caching is on
    admit     get_computed_blocks, then allocate_slots, at most ``step`` tokens of all requests in one step
    append    append_output_token_ids (which hashes a page that is full now), then allocate_slots of one token
    lookup    Request(...) of a prompt and one token more, with its hashes, then get_computed_blocks
    find      get_computed_blocks alone: the hashes are there
    free      free

Times are processor seconds of this thread, without the collection of garbage, which is switched off.
"""

import gc
import hashlib
import json
import random
import sys
import time
from array import array
from importlib import import_module
from typing import Any

VOCABULARY = 32_000


class Bookkeeper:
    """One manager and the requests of one round."""

    def __init__(self) -> None:
        self.torch = import_module("torch")
        self.utils = import_module("vllm.v1.core.kv_cache_utils")
        self.interface = import_module("vllm.v1.kv_cache_interface")
        self.manager_type = import_module("vllm.v1.core.kv_cache_manager").KVCacheManager
        self.request_type = import_module("vllm.v1.request").Request
        self.sampling = import_module("vllm.sampling_params").SamplingParams(max_tokens=1 << 20)
        hashing = import_module("vllm.utils.hashing")
        self.hash = hashing.get_hash_fn_by_name("sha256")  # vLLM's default
        self.utils.init_none_hash(self.hash)
        self.prompts: list[list[int]] = []
        self.requests: list[Any] = []
        self.number = 0

    def open(self, num_blocks: int, page: int, max_tokens: int, prefix_cache: bool) -> dict[str, object]:
        interface = self.interface
        layer = interface.FullAttentionSpec(block_size=page, num_kv_heads=1, head_size=8, dtype=self.torch.bfloat16)
        config = interface.KVCacheConfig(num_blocks + 1, [], [interface.KVCacheGroupSpec(["layer"], layer)])
        self.manager = self.manager_type(
            config,
            max_model_len=max_tokens,
            scheduler_block_size=page,
            hash_block_size=page,
            enable_caching=prefix_cache,
        )
        self.hasher = self.utils.get_request_block_hasher(page, self.hash) if prefix_cache else None
        self.requests, self.number = [], 0
        gc.collect()
        gc.disable()
        return {"free": self.free_blocks()}

    def free_blocks(self) -> int:
        return int(self.manager.block_pool.get_num_free_blocks())

    def make(self, count: int, tokens: int, seed: int) -> dict[str, object]:
        self.prompts = []
        draw, ids = random.Random(seed), list(range(VOCABULARY))
        digest = hashlib.sha256()
        for _ in range(count):
            self.prompts.append(draw.choices(ids, k=tokens))
            digest.update(array("i", self.prompts[-1]).tobytes())
        return {"digest": digest.hexdigest()}

    def request(self) -> dict[str, object]:
        begin = time.thread_time()
        self.requests = [self._request(prompt) for prompt in self.prompts]
        return {"seconds": time.thread_time() - begin}

    def _request(self, prompt: list[int]) -> Any:
        self.number += 1
        return self.request_type(str(self.number), prompt, self.sampling, None, block_hasher=self.hasher)

    def admit(self, step: int) -> dict[str, object]:
        manager, hits = self.manager, []
        begin = time.thread_time()
        for request in self.requests:
            blocks, found, _ = manager.get_computed_blocks(request)
            hits.append(found)
            at, known = found, blocks
            while at < request.num_prompt_tokens:
                count = min(step, request.num_prompt_tokens - at)
                got = manager.allocate_slots(request, count, found if known is not None else 0, known)
                assert got is not None, "vLLM is out of blocks"
                at, known = at + count, None
                request.num_computed_tokens = at
        seconds = time.thread_time() - begin
        return {"seconds": seconds, "hits": hits, "blocks": self._num_blocks(), "free": self.free_blocks()}

    def _num_blocks(self) -> list[int]:
        return [len(self.manager.get_block_ids(request.request_id)[0]) for request in self.requests]

    def append(self, steps: int, token: int) -> dict[str, object]:
        manager, requests = self.manager, self.requests
        seconds = []
        for each in range(steps):
            begin = time.thread_time()
            for request in requests:
                request.append_output_token_ids(token + each)
                got = manager.allocate_slots(request, 1)
                assert got is not None, "vLLM is out of blocks"
                request.num_computed_tokens += 1
            seconds.append(time.thread_time() - begin)
        return {"seconds": sum(seconds), "steps": seconds, "blocks": self._num_blocks(), "free": self.free_blocks()}

    def lookup(self) -> dict[str, object]:
        asked = [[*prompt, 1] for prompt in self.prompts]
        begin = time.thread_time()
        hits = [self.manager.get_computed_blocks(self._request(prompt))[1] for prompt in asked]
        return {"seconds": time.thread_time() - begin, "hits": hits}

    def find(self) -> dict[str, object]:
        requests = [self._request([*prompt, 1]) for prompt in self.prompts]
        begin = time.thread_time()
        hits = [self.manager.get_computed_blocks(request)[1] for request in requests]
        return {"seconds": time.thread_time() - begin, "hits": hits}

    def free(self) -> dict[str, object]:
        begin = time.thread_time()
        for request in self.requests:
            self.manager.free(request)
        seconds = time.thread_time() - begin
        self.requests = []
        return {"seconds": seconds, "free": self.free_blocks()}


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # what vLLM prints is no answer
    keeper = Bookkeeper()
    print(json.dumps({"ready": import_module("vllm").__version__}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(getattr(keeper, asked.pop("do"))(**asked)), file=answers, flush=True)


if __name__ == "__main__":
    main()
