"""Decode: one new token per sequence, against a plain read of the same number of bytes and against torch."""

from kvpager.bench.interleaved import Call, run_in_turn
from kvpager.bench.limits import native_module, read_limit
from kvpager.bench.paged_case import LLAMA, SMOL, TORCH_TOLERANCE, Contiguous, PagedCase, Shape, check_close
from kvpager.bench.report import Result
from kvpager.bench.scale import Scale
from kvpager.bench.torch_attention import TorchAttention, bmm_folded, sdpa_folded, sdpa_gqa

FOLDED = (sdpa_folded, bmm_folded)

READ_SHARE = {"llama": 0.55, "smol": 0.60}  # at least
VS_FOLDED = {"llama": 3.0, "smol": 2.0}
VS_SDPA_GQA = 20.0


def measure(scale: Scale) -> list[Result]:
    results = []
    for shape in (LLAMA, SMOL):
        prefix = f"decode_{shape.name}"
        with PagedCase(shape, scale.long, cold_bytes=scale.cold_bytes) as case:
            case.check()
            results += _against_reads(f"{prefix}_1x128k", case, scale.seconds)
            results += _against_torch(f"{prefix}_1x128k", case, scale.seconds, has_targets=False)
        with PagedCase(shape, scale.batch, cold_bytes=scale.cold_bytes) as case:
            case.check()
            results += _against_reads(f"{prefix}_64x2k", case, scale.seconds)
            results += _against_torch(f"{prefix}_64x2k", case, scale.seconds, has_targets=True)
            results += _instruction_sets(f"{prefix}_64x2k", case, scale.seconds)
        results.append(_small_pages(f"{prefix}_64x2k", shape, scale))
    return results


def _against_reads(prefix: str, case: PagedCase, seconds: float) -> list[Result]:
    times = run_in_turn([case.run, read_limit(case.arena.address, case.bytes_per_batch, case.num_batches)], seconds)
    gigabytes_per_second = case.bytes_per_batch / times.median(1) / 1e9
    return [
        times.ratio(1, 0).result(f"{prefix}_read_share", "share", at_least=READ_SHARE[case.shape.name]),
        Result(f"{prefix}_ms", times.median(0) * 1e3, "ms"),
        Result(f"{prefix}_read_limit", gigabytes_per_second, "GB/s"),
    ]


def _against_torch(prefix: str, case: PagedCase, seconds: float, has_targets: bool) -> list[Result]:
    content = case.contiguous()
    _check_torch(case, content)
    folded = [_in_turn(attend, content) for attend in FOLDED]
    read = read_limit(case.arena.address, case.bytes_per_batch, case.num_batches)
    times = run_in_turn([case.run, *folded, _in_turn(sdpa_gqa, content), read], seconds)
    best = times.fastest((1, 2))
    gather = _gather_and(FOLDED[best - 1], case)
    with_gather = run_in_turn([case.run, gather], seconds, least=3)
    vs_folded, vs_sdpa_gqa = (VS_FOLDED[case.shape.name], VS_SDPA_GQA) if has_targets else (None, None)
    return [
        times.ratio(best, 0).result(f"{prefix}_vs_folded", at_least=vs_folded),
        times.ratio(3, 0).result(f"{prefix}_vs_sdpa_gqa", at_least=vs_sdpa_gqa),
        with_gather.ratio(1, 0).result(f"{prefix}_vs_gather_folded"),
        # What the ratios to torch would be if attention took no longer than the plain read.
        times.ratio(best, 4).result(f"{prefix}_read_limit_vs_folded"),
        times.ratio(3, 4).result(f"{prefix}_read_limit_vs_sdpa_gqa"),
    ]


def _check_torch(case: PagedCase, content: list[Contiguous]) -> None:
    batch, expected = content[0], case.expected(0)
    for attend in (*FOLDED, sdpa_gqa):
        found = attend(batch.q, batch.k, batch.v, None)
        check_close(attend.__name__, found.transpose(1, 2).reshape(expected.shape), expected, TORCH_TOLERANCE)


def _in_turn(attend: TorchAttention, content: list[Contiguous]) -> Call:
    turn = 0

    def call() -> None:
        nonlocal turn
        turn = (turn + 1) % len(content)
        attend(content[turn].q, content[turn].k, content[turn].v, None)

    return call


def _gather_and(attend: TorchAttention, case: PagedCase) -> Call:
    """The blocks gathered by torch into a contiguous cache, then torch."""
    queries, turn = [case.queries(number) for number in range(case.num_batches)], 0

    def call() -> None:
        nonlocal turn
        turn = (turn + 1) % len(queries)
        attend(queries[turn], *case.gathered(turn), None)

    return call


def _instruction_sets(prefix: str, case: PagedCase, seconds: float) -> list[Result]:
    """The same step with each instruction set this machine has."""
    module = native_module()
    active = module.isa()
    names = module.available_isas()

    def with_isa(name: str) -> Call:
        def call() -> None:
            module.set_isa(name)
            case.run()

        return call

    try:
        for name in names:
            module.set_isa(name)
            case.check()
        times = run_in_turn([with_isa(name) for name in names], seconds)
    finally:
        module.set_isa(active)
    return [Result(f"{prefix}_ms/{name}", times.median(at) * 1e3, "ms") for at, name in enumerate(names)]


def _small_pages(prefix: str, shape: Shape, scale: Scale) -> Result:
    """Time with the system's small pages of memory over time with huge ones."""
    cold = scale.cold_bytes
    with (
        PagedCase(shape, scale.batch, cold_bytes=cold, has_huge_pages=False) as small,
        PagedCase(shape, scale.batch, cold_bytes=cold) as huge,
    ):
        small.check()
        huge.check()
        return run_in_turn([small.run, huge.run], scale.seconds).ratio(0, 1).result(f"{prefix}_without_huge_pages")
