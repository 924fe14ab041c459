"""The description's appendix C: paged against contiguous allocation at equal memory, real and scaled to this machine.

SmolLM2 in bfloat16 where a row of its products has the same bits in every batch, and else in float32, so that tokens
can be compared. What is scaled, and how, says bench/appendix_scenario.py. Only memory management differs (option
``allocation``): ``contiguous`` reserves the whole context for each request from its start, as servers did that knew no
better ("Orca (Max)" in the paper on PagedAttention, section 6.1); ``contiguous-exact`` reserves the final length, which
no server knows ("Orca (Oracle)").

    .._vs_contiguous           tokens a second from the first request's start to the last one's end, prompts included;
                               most tokens are prompts, as in the trace that the lengths are from
    .._generation_vs_contiguous   the same, with two thirds of the tokens of each request generated
    .._decode_vs_contiguous    the trace's again, where prompts are computed elsewhere (bench/appendix_decode.py)
    .._used, future, wasted_share   what the pool's room was used for (bench/appendix_served.py)
    .._stranded, fragmented_share   room that was free while a request waited; of that, enough for it, but in pieces
    .._utilisation             K and V that were computed, over what was reserved for them
    kv_waste_share             of paged allocation, at true lengths (bench/appendix_waste.py)

The other two forms, true context lengths and full scale, are ``kvpager bench appendix_full``. About 5 minutes with
``--quick``, 20 without: the contiguous server takes most of them.
"""

import torch

from kvpager.bench import appendix_row5, appendix_rows, appendix_waste
from kvpager.bench.report import Result, report
from kvpager.integrations.products import is_native
from kvpager.models.load import load_model

MANY_ROWS = 1 << 16
CONCURRENCY = 3.0  # of paged over contiguous, at least
_CHECKS = (
    "greedy tokens of the first requests of each row are the same under all three regimes, but for ties",
    "greedy tokens of row 5 over a lower tier are those of a pool that holds all pages, but for ties",
)


def run(quick: bool = False) -> dict[str, object]:
    scale = appendix_rows.QUICK if quick else appendix_rows.FULL
    dtype = "bfloat16" if is_native(MANY_ROWS, torch.bfloat16) else "float32"
    model = load_model("smollm2", dtype=dtype, device="cpu").model
    results = appendix_waste.measure(quick)
    results += appendix_rows.measure(model, scale)
    results += appendix_row5.measure(model, scale.row5_context)
    results.append(_concurrency(results))
    return report("appendix_c", results, f"{dtype}, contexts of {scale.context} tokens", checks=_CHECKS)


def _concurrency(results: list[Result]) -> Result:
    """The least of the four rows."""
    found = [each.value for each in results if each.name in {f"concurrency_vs_contiguous/row{n}" for n in (1, 2, 3, 4)}]
    return Result("concurrency_vs_contiguous", min(found), "ratio", at_least=CONCURRENCY)
