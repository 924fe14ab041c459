"""How much a benchmark of the kernels measures."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """``sequences`` of ``context`` tokens each, the last ``new_tokens`` of them computed by the step."""

    sequences: int
    context: int
    new_tokens: int = 1


@dataclass(frozen=True, slots=True)
class Scale:
    """``seconds``: per comparison. The names of figures speak of the sizes that are the defaults here."""

    seconds: float
    cold_bytes: int = 512 << 20  # more than stays in the caches, L3 included
    long: Load = Load(sequences=1, context=131072)
    batch: Load = Load(sequences=64, context=2048)
    paging: Load = Load(sequences=64, context=2048)
    prefill: Load = Load(sequences=1, context=8192 + 512, new_tokens=512)
    gemm_size: int = 4096  # of square matrices: large enough to run at full speed
    prefill_rows: int = 8192  # tokens written at once
    decode_rows: int = 256


FULL = Scale(seconds=3.0)
QUICK = Scale(seconds=0.2, cold_bytes=256 << 20, paging=Load(sequences=32, context=2048))
