"""kvpager itself, by the same protocol as its peers, so that time and memory are counted alike."""

from typing import Any

import torch

from kvpager.engine.engine import Engine
from kvpager.engine.request import Request
from kvpager.engine.sampling_params import Sampling

from serving_loop import WARM_UP, Answer, Arrivals, Load, serve, versions


class Kvpager:
    def __init__(self, options: dict[str, Any]) -> None:
        torch.set_num_threads(options["threads"])
        self._precision = options["precision"]
        self._engine = Engine(
            options["model"],
            dtype=self._precision,
            capacity=str(options["kv_bytes"]),
        )
        self.run(WARM_UP)

    def about(self) -> dict[str, Any]:
        cache = self._engine.cache
        return {
            "precision": f"weights, activations and KV {self._precision}",
            "bits": torch.finfo(getattr(torch, self._precision)).bits,
            "kv_tokens": cache.num_available * cache.layout.page_size,
            "versions": versions("kvpager", "torch", "transformers"),
        }

    def run(self, load: Load) -> list[Answer]:
        engine, arrivals = self._engine, Arrivals(load)
        sent: dict[int, tuple[int, Request]] = {}
        while arrivals.any_left or engine.has_work:
            for index, ask in arrivals.due():
                request = engine.submit(ask["prompt"], Sampling(max_tokens=ask["max_tokens"], ignore_eos=True))
                sent[request.id] = (index, request)
            if not engine.has_work:
                arrivals.wait()
            for event in engine.step():
                if event.token is None:
                    _, request = sent[event.request_id]
                    raise RuntimeError(f"no token came: {request.branches[0].error or event.finish_reason}")
                arrivals.came(sent[event.request_id][0], [event.token])
        return arrivals.answers


if __name__ == "__main__":
    serve(Kvpager)
