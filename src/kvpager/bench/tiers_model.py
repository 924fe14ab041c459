"""What the tiers are to a model that runs: first tokens, the cost of writing through, and the bookkeeping's waits."""

from pathlib import Path

from kvpager.bench import tiers_decode, tiers_first_token
from kvpager.bench.report import Result
from kvpager.bench.tiers_scale import TierScale
from kvpager.bench.tiers_waits import Waits
from kvpager.errors import ModelError
from kvpager.models.load import load_model
from kvpager.models.source import resolve


def measure(scale: TierScale, folder: Path) -> list[Result]:
    """Nothing where the model was not fetched."""
    try:
        resolve("smollm2")
    except ModelError:
        return []
    model = load_model("smollm2", dtype="bfloat16", device="cpu").model
    waits = Waits()
    results = tiers_first_token.measure(scale, folder, model, waits)
    results += tiers_decode.measure(scale, folder, model, waits)
    return [*results, *_waits(waits)]


def _waits(waits: Waits) -> list[Result]:
    return [
        Result("bookkeeping_io_wait_seconds", waits.seconds, "s", at_most=0.0),
        Result("bookkeeping_io_calls", float(waits.calls.total()), "calls"),
        Result("bookkeeping_io_calls/kernel", float(waits.kernel), "calls"),
        Result("bookkeeping_idle_seconds", waits.idle, "s"),
    ]
