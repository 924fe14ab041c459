"""OpenVINO GenAI: ContinuousBatchingPipeline on the GGUF file, with prefix sharing.

Traps: a processor without bfloat16 instructions computes in float32 whatever the hint says, with the 16-bit weights
unpacked when the model is compiled; the pipeline takes ids only as a tensor [1, n] of int64.
"""

from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from serving_loop import WARM_UP, Answer, Arrivals, Load, TooSlow, serve, versions

_KV_TYPES = {"bfloat16": "f16", "float32": "f32"}
_BLOCK_TOKENS = 32


class OpenVino:
    def __init__(self, options: dict[str, Any]) -> None:
        self._precision = options["precision"]
        config = genai.SchedulerConfig()
        config.num_kv_blocks = options["kv_bytes"] // (_token_bytes(options) * _BLOCK_TOKENS)
        config.max_num_batched_tokens = 512
        config.max_num_seqs = 256
        config.dynamic_split_fuse = True
        config.enable_prefix_caching = True
        model = f"{options['folder']}/smollm2-f16.gguf"
        properties = {
            "INFERENCE_PRECISION_HINT": "bf16" if self._precision == "bfloat16" else "f32",
            "KV_CACHE_PRECISION": _KV_TYPES[self._precision],
            "INFERENCE_NUM_THREADS": options["threads"],
        }
        self._pipeline = genai.ContinuousBatchingPipeline(model, config, "CPU", properties)
        self._kv_tokens = config.num_kv_blocks * _BLOCK_TOKENS
        self._sent = 0
        self.run(WARM_UP)

    def about(self) -> dict[str, Any]:
        return {
            "precision": f"weights float16, hint {self._precision}, KV {_KV_TYPES[self._precision]}",
            "bits": 16 if self._precision == "bfloat16" else 32,
            "kv_tokens": self._kv_tokens,
            "versions": versions("openvino", "openvino-genai"),
        }

    def run(self, load: Load) -> list[Answer]:
        arrivals, running = Arrivals(load), dict[int, Any]()
        try:
            self._serve(arrivals, running)
        except TooSlow:
            for handle in running.values():
                handle.cancel()
            while self._pipeline.has_non_finished_requests():
                self._pipeline.step()
            raise
        return arrivals.answers

    def _serve(self, arrivals: Arrivals, running: dict[int, Any]) -> None:
        pipeline = self._pipeline
        while arrivals.any_left or running:
            for index, ask in arrivals.due():
                running[index] = self._send(ask)
            if not running:
                arrivals.wait()
                continue
            pipeline.step()
            for index, handle in list(running.items()):
                while handle.can_read():
                    tokens = [token for each in handle.read().values() for token in each.generated_ids]
                    if tokens and arrivals.came(index, tokens):
                        del running[index]

    def _send(self, ask: dict[str, Any]) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens = ask["max_tokens"]
        config.ignore_eos = True
        config.do_sample = False
        ids = ov.Tensor(np.array([ask["prompt"]], np.int64))
        self._sent += 1
        return self._pipeline.add_request(self._sent, ids, config)


def _token_bytes(options: dict[str, Any]) -> int:
    """Of K and V in all layers. SmolLM2-135M: 30 layers, 3 heads of 64."""
    return 2 * 30 * 3 * 64 * (2 if options["precision"] == "bfloat16" else 4)


if __name__ == "__main__":
    serve(OpenVino)
