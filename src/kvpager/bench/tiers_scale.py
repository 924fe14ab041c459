"""How much ``kvpager bench tiers`` measures."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierScale:
    """The names of figures speak of the sizes that are the defaults here.

    ``chunk_pages``: moved at once and timed as a whole. ``disk_chunks``: in the folder, more than caches could explain.
    ``seconds``: per comparison, and at least ``rounds`` rounds. ``prefixes``: tokens of the series of first tokens.
    ``decode_sequences``: running together; ``decode_tokens``: that each of them makes in a run. ``pool``, ``tier``:
    capacities while a model runs.
    """

    seconds: float = 8.0
    rounds: int = 5
    chunk_pages: int = 728  # 512 MiB of SmolLM2's pages
    disk_chunks: int = 8
    restart_bytes: tuple[int, ...] = (5 * 10**9, 20 * 10**9)
    prefixes: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    decode_sequences: tuple[int, ...] = (16, 32)
    decode_tokens: int = 96
    pool: str = "2 GiB"
    tier: str = "1 GiB"


FULL = TierScale()
QUICK = TierScale(
    seconds=0.5,
    rounds=3,
    chunk_pages=364,
    disk_chunks=4,
    prefixes=(512, 4096),
    decode_tokens=48,
)
