"""What a request that does not fit on the device does to the ordinary ones beside it: their inter-token latencies.

    alone      some requests decode together
    prefill    the same, while an oversized prompt is computed, whose pages go to the disk tier as it grows
    decode     the same, while an oversized request decodes, reading its pages from there

in turn, on one engine with a small random model. A latency is the time between two tokens of a request as its client
sees them. All phases must give the same tokens, and the oversized request must have faulted in each of its phases.
"""

import time
from pathlib import Path
from random import Random

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvpager.bench.demand_scale import DemandScale
from kvpager.bench.report import SEED, Result
from kvpager.config.tiers import DiskTier
from kvpager.engine import Engine, Sampling
from kvpager.engine.request import Request
from kvpager.errors import InvariantError
from kvpager.prefix.hashing import Scope

AT_MOST = 1.5
_PAGE_SIZE = 16
_PROMPT_TOKENS = 64
_VOCABULARY = 4096
_PHASES = ("alone", "prefill", "decode")
_LONGER = 4  # than the oversized prompt that is computed once: this one is left when a phase ends
_MANY_TOKENS = 1 << 12  # more than the oversized request can make in a phase


def neighbours(scale: DemandScale, folder: Path) -> list[Result]:
    runs = _Runs(scale, folder / "neighbours")
    with runs.engine:
        runs.warm_up()
        for number in range(scale.rounds):
            for phase in _PHASES if number % 2 else _PHASES[::-1]:
                runs.run(phase)
    p99 = {phase: float(np.quantile(runs.gaps[phase], 0.99)) for phase in _PHASES}
    growth = {phase: p99[phase] / p99["alone"] for phase in _PHASES[1:]}
    return [
        Result("neighbour_itl_p99_growth", max(growth.values()), "ratio", at_most=AT_MOST),
        *(Result(f"neighbour_itl_p99_growth/{phase}", growth[phase], "ratio") for phase in growth),
        *(Result(f"neighbour_itl_p99/{phase}", p99[phase] * 1e3, "ms") for phase in _PHASES),
        *(Result(f"neighbour_itl_p50/{phase}", float(np.median(runs.gaps[phase])) * 1e3, "ms") for phase in _PHASES),
    ]


def random_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=1 << 16,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return LlamaForCausalLM(config).eval()


class _Runs:
    """``gaps``: seconds between tokens, by phase."""

    def __init__(self, scale: DemandScale, folder: Path) -> None:
        self._scale, self._draw = scale, Random(SEED)
        self._prompts = [self._tokens(_PROMPT_TOKENS) for _ in range(scale.neighbours)]
        self._known = self._tokens(scale.oversized_prompt)
        self._outputs: list[list[int]] = []
        self.gaps: dict[str, list[float]] = {phase: [] for phase in _PHASES}
        pages = scale.neighbours * (2 + (_PROMPT_TOKENS + scale.neighbour_tokens) // _PAGE_SIZE)
        self.engine = Engine(
            random_model(),
            num_blocks=pages + scale.oversized_prompt // _PAGE_SIZE // 4,
            page_size=_PAGE_SIZE,
            tiers=(DiskTier(folder, "4 GiB"),),
        )

    def warm_up(self) -> None:
        """The pages of one oversized prompt are in the tier from now on."""
        request = self.engine.submit(self._known, Sampling(max_tokens=2, ignore_eos=True))
        while not request.is_finished:
            self.engine.step()
        self.run("alone")
        self.gaps["alone"].clear()

    def run(self, phase: str) -> None:
        oversized = None if phase == "alone" else self._oversized(phase)
        before = 0 if oversized is None else oversized.branches[0].faults.bytes
        scope = Scope(salt=str(self._draw.random()))  # nothing of an earlier phase is found
        sampling = Sampling(max_tokens=self._scale.neighbour_tokens, ignore_eos=True)
        requests = [self.engine.submit(prompt, sampling, scope=scope) for prompt in self._prompts]
        self._decode(phase, requests)
        outputs = [list(request.branches[0].output) for request in requests]
        if outputs != (self._outputs or outputs):
            raise InvariantError(f"beside a request that does not fit ({phase}) others gave other tokens")
        self._outputs = outputs
        if oversized is not None:
            if oversized.is_finished or oversized.branches[0].faults.bytes == before:
                raise InvariantError(f"the oversized request did not fault ({phase}); it was not timed")
            self.engine.cancel(oversized.id)

    def _oversized(self, phase: str) -> Request:
        """A request that faults from now on: in its prompt, of which most is still to be computed, or decoding."""
        prompt = self._known if phase == "decode" else self._tokens(_LONGER * self._scale.oversized_prompt)
        request = self.engine.submit(prompt, Sampling(max_tokens=_MANY_TOKENS, ignore_eos=True))
        [branch] = request.branches
        while not (branch.output if phase == "decode" else branch.faults.bytes):
            self.engine.step()
        return request

    def _decode(self, phase: str, requests: list[Request]) -> None:
        keys = {request.id for request in requests}
        last: dict[int, float] = {}
        while not all(request.is_finished for request in requests):
            events = self.engine.step()
            now = time.perf_counter()
            for event in events:
                if event.request_id in keys and event.token is not None:
                    if event.request_id in last:
                        self.gaps[phase].append(now - last[event.request_id])
                    last[event.request_id] = now

    def _tokens(self, count: int) -> list[int]:
        return [self._draw.randrange(_VOCABULARY) for _ in range(count)]
