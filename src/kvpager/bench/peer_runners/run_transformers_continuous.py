"""Hugging Face's continuous batching: its manager, which computes in a thread of its own and streams.

It shares blocks between prompts that begin alike. Traps: on a CPU the memory for its cache can't be found out, so the
number of blocks must be said; the end token is -1, for None takes the model's; a streamed output repeats all tokens
so far.
"""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from serving_loop import WARM_UP, Answer, Arrivals, Load, TooSlow, serve, versions

_PAGE_TOKENS = 128


class Continuous:
    def __init__(self, options: dict[str, Any]) -> None:
        torch.set_num_threads(options["threads"])
        self._precision = options["precision"]
        dtype = getattr(torch, self._precision)
        model = AutoModelForCausalLM.from_pretrained(options["model"], dtype=dtype, attn_implementation="sdpa").eval()
        text = model.config.get_text_config()
        head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        page = _PAGE_TOKENS * 2 * text.num_hidden_layers * text.num_key_value_heads * head * dtype.itemsize
        self._blocks = options["kv_bytes"] // page
        config = ContinuousBatchingConfig(
            page_size=_PAGE_TOKENS, num_blocks=self._blocks, max_batch_tokens=512, allow_block_sharing=True
        )
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=4)
        self._bits = 8 * dtype.itemsize
        self._manager = model.init_continuous_batching(generation_config=greedy, continuous_batching_config=config)
        self._manager.start()
        self._sent = 0
        self.run(WARM_UP)

    def about(self) -> dict[str, Any]:
        return {
            "precision": f"weights, activations and KV {self._precision}, attention sdpa, paged",
            "bits": self._bits,
            "kv_tokens": self._blocks * _PAGE_TOKENS,
            "versions": versions("transformers", "torch"),
        }

    def run(self, load: Load) -> list[Answer]:
        arrivals, running = Arrivals(load), dict[str, int]()
        try:
            self._serve(arrivals, running, [ask["max_tokens"] for ask in load.asks])
        except TooSlow:
            for name in running:
                self._manager.cancel_request(name)
            with self._manager.pause():  # entered between two steps: the one under way has ended
                raise
        return arrivals.answers

    def _serve(self, arrivals: Arrivals, running: dict[str, int], wanted: list[int]) -> None:
        """``wanted``: tokens of each ask's answer."""
        while arrivals.any_left or running:
            for index, ask in arrivals.due():
                running[self._send(ask)] = index
            if not running:
                arrivals.wait()
                continue
            for output in self._outputs(arrivals.any_left):
                if output.request_id not in running:
                    continue  # of a workload that was stopped
                if output.error:
                    raise RuntimeError(output.error)
                index = running[output.request_id]
                known = len(arrivals.answers[index].tokens)
                if arrivals.came(index, list(output.generated_tokens)[known : wanted[index]]):
                    del running[output.request_id]

    def _send(self, ask: dict[str, Any]) -> str:
        self._sent += 1
        name = str(self._sent)
        self._manager.add_request(
            ask["prompt"], request_id=name, max_new_tokens=ask["max_tokens"], streaming=True, eos_token_id=-1
        )
        return name

    def _outputs(self, more_to_come: bool) -> list[Any]:
        """What has come; waits for it, but not past the time at which another ask may be due, or long."""
        found = self._manager.get_result(timeout=0.005 if more_to_come else 1.0)
        if found is None and not self._manager.is_running():
            raise RuntimeError("it has stopped")
        return [] if found is None else [found]


if __name__ == "__main__":
    serve(Continuous)
