"""The phases of ``kvpager bench million``: a comparison with a run without paging, one prompt, and several at once."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from transformers import LlamaForCausalLM

from kvpager.bench.million_rate import PrefillRate
from kvpager.bench.million_scale import MillionScale
from kvpager.bench.million_served import Served, serve, write_by_hand
from kvpager.bench.random_pages import RandomPages
from kvpager.bench.report import SEED
from kvpager.cache.statistics import CacheStatistics
from kvpager.config.tiers import DiskTier
from kvpager.engine import Engine
from kvpager.errors import InvariantError
from kvpager.integrations.model_layout import layout_for

_ALONE = 0.9  # of the pool, for a sequence that runs alone
_OUTPUT_PAGES = 2  # at the end of the range, for what is decoded
_CHECK_TOKENS = 8
_CHECK_PARTS = 16  # of the prompt: the first is computed, and the last
_RATE_PROMPTS = (1024, 4096)
_HEADS = [1 << power for power in range(8, 18)]  # tokens of a prompt's beginning that may be computed
_TAILS = [1 << power for power in range(6, 13)]


@dataclass(slots=True)
class Measured:
    """``seconds`` by phase. ``head``, ``tail``: tokens that were computed at the ends of the prompt; ``by_hand``: that
    were not computed, of all prompts. ``statistics`` of each cache, at its end."""

    seconds: dict[str, float] = field(default_factory=dict)
    head: int = 0
    tail: int = 0
    by_hand: int = 0
    disk_bytes: int = 0
    statistics: list[CacheStatistics] = field(default_factory=list)
    served: dict[str, Served] = field(default_factory=dict)  # by phase


class MillionRun:
    """``folder``: where the disk tiers lie."""

    def __init__(self, model: LlamaForCausalLM, scale: MillionScale, folder: Path) -> None:
        self._model, self._scale, self._folder = model, scale, folder
        self.layout = layout_for(model.config, dtype="bfloat16", page_size=scale.page_size)
        self._pages = RandomPages(self.layout)
        self._draw = Random(SEED)
        self.prompt_tokens = scale.context - _OUTPUT_PAGES * scale.page_size + 1  # one more than whole pages
        self.measured = Measured()

    # -- as without paging? -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises InvariantError unless a shorter prompt gives the same tokens with and without paging."""
        length = self._scale.check_context
        part = length // _CHECK_PARTS // self.layout.page_size * self.layout.page_size
        prompt = self._tokens(length - 2 * self.layout.page_size + 1)
        outputs = []
        with self._timed("check"):
            for share in (1.25, self._scale.pool_share):
                with self._engine("check", length, share, 1, _ALONE, deterministic=True) as engine:
                    served = self._one(engine, prompt, part, part)
                    outputs.append(served.outputs)
                    if (share < 1) != (served.bytes > 0):
                        raise InvariantError(f"{served.bytes} bytes were read from the disk with a pool of {share}")
        if outputs[0] != outputs[1]:
            raise InvariantError("paging gave other tokens than a pool that holds everything; nothing was timed")

    def _one(self, engine: Engine, prompt: list[int], head: int, tail: int) -> Served:
        serve(engine, [prompt[:head]], 2)
        write_by_hand(engine, prompt, len(prompt) - 1 - tail, self._pages, 0)
        return serve(engine, [prompt], _CHECK_TOKENS)

    # -- what this machine computes -----------------------------------------------------------------------------

    def rate(self) -> PrefillRate:
        """Of prompts that fit on the device."""
        with self._timed("rate"), Engine(self._model, num_blocks=2 * self.layout.num_pages(_RATE_PROMPTS[1])) as engine:
            serve(engine, [self._tokens(64)], 2)
            short, long = ((n, serve(engine, [self._tokens(n)], 2).first) for n in _RATE_PROMPTS)
        return PrefillRate.of(short, long)

    # -- one prompt ---------------------------------------------------------------------------------------------

    def alone(self, rate: PrefillRate) -> list[int]:
        """Returns the prompt: its pages are on the disk from now on."""
        scale, measured = self._scale, self.measured
        prompt = self._tokens(self.prompt_tokens)
        measured.head, measured.tail = self._computed(rate)
        with self._engine("disk", scale.context, scale.pool_share, scale.sequences, _ALONE) as engine:
            if measured.head + measured.tail < self.prompt_tokens:
                self._serve("head", engine, [prompt[: measured.head]], 2)
                self._write("one", engine, prompt, self.prompt_tokens - measured.tail)
            self._serve("exact", engine, [prompt], scale.exact_tokens)
            self._serve("selective", engine, [prompt], scale.selective_tokens, self._selective)
            measured.statistics.append(engine.cache.statistics())
        return prompt

    def _computed(self, rate: PrefillRate) -> tuple[int, int]:
        scale = self._scale
        if scale.head_seconds is None or scale.tail_seconds is None:
            return self.prompt_tokens, 0
        head = rate.fitting(scale.head_seconds, 0, [each for each in _HEADS if each <= scale.context // 4])
        tail = rate.fitting(scale.tail_seconds, scale.context, [each for each in _TAILS if each <= scale.context // 4])
        return head, tail + 1

    # -- several at once ----------------------------------------------------------------------------------------

    def together(self, prompt: list[int]) -> None:
        """``prompt`` and others, of which nothing but what they share with it is on the disk yet."""
        scale = self._scale
        shared = int(self.prompt_tokens * scale.shared) // scale.page_size * scale.page_size
        prompts = [prompt]
        with self._engine("disk", scale.context, scale.pool_share, scale.sequences, 1 / scale.sequences) as engine:
            for number in range(1, scale.sequences):
                prompts.append(prompt[:shared] + self._tokens(self.prompt_tokens - shared))
                if scale.is_quick:
                    self._write("others", engine, prompts[-1], self.prompt_tokens - 1, number)
            self._serve("exact_together", engine, prompts, scale.exact_tokens_each)
            self._serve("selective_together", engine, prompts, scale.selective_tokens_each, self._selective)
            self.measured.statistics.append(engine.cache.statistics())
            files = (path for path in self._folder.rglob("*") if path.is_file())
            self.measured.disk_bytes = sum(path.stat().st_blocks * 512 for path in files)

    # -- parts --------------------------------------------------------------------------------------------------

    @property
    def _selective(self) -> str:
        return f"selective:budget={self._scale.budget}"

    def _engine(
        self, name: str, context: int, pool_share: float, sequences: int, share: float, *, deterministic: bool = False
    ) -> Engine:
        pages = context // self.layout.page_size
        room = (sequences * pages + 64) * self.layout.block_stride
        return Engine(
            self._model,
            num_blocks=int(pages * pool_share),
            page_size=self.layout.page_size,
            tiers=(DiskTier(self._folder / name, int(1.06 * room)),) if pool_share < 1 else (),
            resident_share=share,
            deterministic=deterministic,
        )

    def _serve(self, phase: str, engine: Engine, prompts: list[list[int]], tokens: int, attend: str = "exact") -> None:
        with self._timed(phase):
            self.measured.served[phase] = serve(engine, prompts, tokens, attend)

    def _write(self, phase: str, engine: Engine, prompt: list[int], until: int, number: int = 0) -> None:
        page_size = self.layout.page_size
        with self._timed(f"by_hand_{phase}"):
            written = write_by_hand(engine, prompt, until // page_size * page_size, self._pages, number << 20)
        self.measured.by_hand += written

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = self.measured.seconds
            seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - begin

    def _tokens(self, count: int) -> list[int]:
        return [self._draw.randrange(self._model.config.vocab_size) for _ in range(count)]
