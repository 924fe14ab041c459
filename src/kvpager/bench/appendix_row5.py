"""Row 5 of appendix C: ten requests for a context that the memory does not hold once. Contiguous allocation refuses
them; paged, with a tier below the device, they all run, and give the tokens of a server with memory for all of them.
"""

from typing import Any

from kvpager.bench.appendix_rows import CONTIGUOUS, EXACT, PAGED, compare
from kvpager.bench.appendix_scenario import PAGE_SIZE, ScaledRow, scaled_row
from kvpager.bench.appendix_served import Served, serve
from kvpager.bench.report import Result
from kvpager.config.tiers import HostTier
from kvpager.engine import Completion, Engine, Sampling

_CHECKED = 2  # requests whose tokens are compared


def measure(model: Any, context: int, page_size: int = PAGE_SIZE) -> list[Result]:
    """Raises InvariantError where paging changes a token."""
    row = scaled_row(5, context)
    ten = _TenRequests(model, row, page_size)
    refused = {regime: ten.serve(regime) for regime in (CONTIGUOUS, EXACT)}
    compare(ten.first_answers(is_large=True), ten.first_answers(is_large=False))
    ours = ten.serve(PAGED)
    has_run = ours.refused == 0 and all(output is not None and len(output) for output in ours.outputs)
    is_refused = all(each.refused == row.at_once for each in refused.values())
    return [
        Result("appendix_c_row5_runs", float(has_run and is_refused), "bool", at_least=1.0),
        *(
            Result(f"appendix_c_row5_refused/{regime}", float(each.refused), "requests")
            for regime, each in refused.items()
        ),
        Result("appendix_c_row5_refused/paged", float(ours.refused), "requests"),
        Result("appendix_c_row5_rate/paged", ours.tokens / ours.seconds, "tokens/s"),
        Result("appendix_c_row5_most_running/paged", float(ours.use.most_running), "requests"),
    ]


class _TenRequests:
    def __init__(self, model: Any, row: ScaledRow, page_size: int) -> None:
        self._model, self._row, self._page_size = model, row, page_size
        self._asks = row.asks(row.at_once, model.config.vocab_size)

    def serve(self, allocation: str) -> Served:
        with self._open(allocation) as engine:
            return serve(engine, self._asks)

    def first_answers(self, *, is_large: bool) -> list[Completion]:
        asks = self._asks[:_CHECKED]
        sampling = Sampling(max_tokens=asks[0].max_tokens, logprobs=2, ignore_eos=True)
        with self._open(PAGED, is_large=is_large) as engine:
            return sorted(engine.generate([ask.prompt for ask in asks], sampling), key=lambda answer: answer.index)

    def _open(self, allocation: str, *, is_large: bool = False) -> Engine:
        """``is_large``: memory for all pages of those whose tokens are compared."""
        row, pages = self._row, self._row.context // self._page_size
        has_tier = allocation == PAGED and not is_large
        return Engine(
            self._model,
            num_blocks=(_CHECKED + 1) * pages if is_large else row.num_blocks(self._page_size),
            page_size=self._page_size,
            max_context=row.context,
            max_running=row.at_once,
            allocation=allocation,
            tiers=(HostTier(pages=(row.at_once + 1) * pages),) if has_tier else (),
        )
