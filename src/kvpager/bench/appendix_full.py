"""Appendix C's rows at full scale by a simulation calibrated on real runs, and at true context lengths for real.

Four parts; the modules named say what each does not measure:

    appendix_c_true_..       the rows with a small random model, in pages that exist: rows 1 to 4 in the device's pool
                             (appendix_full_true.py), row 5 on the disk (appendix_full_oversized.py)
    simulation_..            the simulated server against the engine on this machine (appendix_full_calibration.py)
    appendix_c_simulated_..  the rows on stated hardware; nothing runs there (appendix_full_simulated.py)
    appendix_c_described_..  what the description says, for comparison; not measured here

``--quick`` takes a twentieth of the requests, a sixteenth of row 5's contexts, and calibrates on the small model
instead of SmolLM2. The machine needs 3 GiB of free memory and 3 GB of disk for the rest.
"""

from pathlib import Path

from transformers import PreTrainedModel

from kvpager.bench import (
    appendix_full_calibration,
    appendix_full_oversized,
    appendix_full_simulated,
    appendix_full_true,
)
from kvpager.bench.appendix_full_calibration import calibrate
from kvpager.bench.appendix_full_loads import ROWS
from kvpager.bench.appendix_full_model import small_model
from kvpager.bench.appendix_full_true import TrueScale
from kvpager.bench.report import Result, report
from kvpager.errors import ConfigError, ModelError
from kvpager.models.load import load_model

_CHECKS = (
    "pages of three requests of each row hold, byte by byte, what was written",
    "every request of the runs that calibrate the simulation gave all its tokens",
)


def run(quick: bool = False, folder: str | None = None) -> dict[str, object]:
    """``folder``: where row 5's disk tier is, left as it was (default: the system's temporary folder)."""
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"the folder {folder!r} is not there: make it, or leave --folder out")
    found = [*_true_lengths(quick, folder), *results(quick)]
    return report("appendix_full", found, appendix_full_simulated.stated(), checks=_CHECKS)


def results(quick: bool) -> list[Result]:
    """Of the simulation alone."""
    return [*_calibration(quick), *appendix_full_simulated.measure(quick)]


def _true_lengths(quick: bool, folder: str | None) -> list[Result]:
    model, rows = small_model(), ROWS
    scale = TrueScale(1 / 20 if quick else 1.0)
    found = [result for row in rows[:4] for result in appendix_full_true.measure(model, row, scale)]
    context = rows[4].context // (16 if quick else 1)
    return [*found, *appendix_full_oversized.measure(model, rows[4], context, folder)]


def _calibration(quick: bool) -> list[Result]:
    scale = appendix_full_calibration.QUICK if quick else appendix_full_calibration.FULL
    return list(calibrate(small_model() if quick else _model(), scale).results())


def _model() -> PreTrainedModel:
    try:
        return load_model("smollm2", dtype="bfloat16", device="cpu").model
    except ModelError:
        return small_model()
