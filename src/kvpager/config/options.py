"""The table of options that the engine and every command share: the legal values, default and meaning of each.

Does not know where values come from (config/load.py), torch, which eviction policies or attention backends exist, or
what an option does: that is for those who receive ``Options``.
"""

from dataclasses import dataclass

from kvpager.config.kinds import (
    AttendText,
    Bytes,
    Capacity,
    File,
    Flag,
    Fraction,
    PageSize,
    PositiveFraction,
    Quotas,
    Seconds,
    Share,
    Text,
    Tiers,
    Whole,
)
from kvpager.config.memory import AUTO_POOL_PERCENT
from kvpager.config.quotas import TenantQuota
from kvpager.config.sizes import AUTO
from kvpager.config.table import DEBUG_ALIAS, check_fields, option
from kvpager.config.tiers import TierOptions

DEFAULT_PAGE_SIZE = 32  # tokens; docs/design/0009-native-kernels.md has the measurements it was chosen by
PAGED, CONTIGUOUS = "paged", "contiguous"

_NAME = r"[a-z][a-z0-9_-]*"
_DTYPES = "'auto', 'float32', 'bfloat16' or 'float16'"
_DTYPE_PATTERN = "auto|float32|bfloat16|float16"
_KV_DTYPES = "'auto', 'float32', 'bfloat16', 'float16', 'int8' or 'float8_e4m3'"
_KV_DTYPE_PATTERN = f"{_DTYPE_PATTERN}|int8|float8_e4m3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options of an engine. Immutable; an illegal value raises ConfigError.

    The table below is the documentation too: ``options_table`` renders it, ``list_options`` hands it to programs.
    """

    model: str = option(
        "smollm2",
        Text("a model folder, a .gguf file, a hub id or a short name"),
        "The model to run.",
        "To run another model.",
    )
    dtype: str = option(
        "auto",
        Text(_DTYPES, _DTYPE_PATTERN),
        "Number format of weights and activations; 'auto' is the format in the model's files.",
        "float32 to compare runs exactly; bfloat16 to halve the memory of a float32 model.",
    )
    device: str = option(
        "auto",
        Text("'auto', 'cpu', 'cuda' or 'cuda:N'", "auto|cpu|cuda(:[0-9]{1,4})?"),
        "Where the model runs and the pool lies; 'auto' is the first CUDA device, else the CPU.",
        "To choose among several devices, or to keep a busy one free.",
    )
    capacity: str | int = option(
        AUTO,
        Capacity(),
        f"Size of the block pool; 'auto' is {AUTO_POOL_PERCENT} % of the memory that is free once the model is loaded.",
        "Lower it to leave memory to others; raise it to hold more requests and longer prefixes.",
    )
    page_size: str | int = option(
        DEFAULT_PAGE_SIZE,
        PageSize(),
        "Size of a page: a bare number is tokens, a number with a unit is bytes over all layers.",
        "Larger for very long contexts (smaller tables); smaller for short requests (less unused room in last pages).",
    )
    allocation: str = option(
        PAGED,
        Text("'paged', 'contiguous' or 'contiguous-exact'", "paged|contiguous|contiguous-exact"),
        "How requests get their blocks: 'paged', page by page as they grow; 'contiguous', all of max_context in a row "
        "when they start, as servers did before paging; 'contiguous-exact', as many in a row as their prompt and "
        "max_tokens take. Nothing is shared then: no prefix cache, no tiers, one choice a request.",
        "Only to measure what paging gains.",
    )
    kv_dtype: str = option(
        "auto",
        Text(_KV_DTYPES, _KV_DTYPE_PATTERN),
        "Number format of keys and values in the pool; 'auto' is that of the activations. 'int8' and 'float8_e4m3' are "
        "lossy: one byte an element, and a scale per page and head.",
        "int8 to hold twice the tokens of a bfloat16 model where answers may differ a little; docs/log.md has figures.",
    )
    tiers: tuple[TierOptions, ...] = option(
        (),
        Tiers(),
        "Where pages go below the device, the nearest first; without any, what is dropped there is computed again. The "
        "flag is given once for each tier; the variable separates them with ';'.",
        "Host memory to keep more prefixes than the pool holds, a disk to start warm, a remote store to share them.",
    )
    write_back: str = option(
        "through",
        Text("'through', 'back' or 'selective'", "through|back|selective"),
        "When pages are copied down: as soon as they are full, before they are dropped, or when they are used again.",
        "'back' or 'selective' where a tier is slow or wears out; less survives a crash then.",
    )
    tier_dtype: str = option(
        "auto",
        Text("'auto', 'int8' or 'float8_e4m3'", "auto|int8|float8_e4m3"),
        "Number format of pages below the device; 'auto' is that of the pool. The others are lossy: half the bytes or "
        "less, and a page that comes back is not quite the one that went.",
        "int8 where tiers are slow or small, and answers may differ a little.",
    )
    load_deadline: float | None = option(
        10.0,
        Seconds(none="wait as long as it takes"),
        "Seconds until a request computes the pages that have not come from a lower tier.",
        "Lower it where a tier is sometimes slow and answers must not be.",
    )
    eviction: str = option(
        "lru",
        Text("the name of an eviction policy", _NAME),
        "Which cached page goes first when blocks are needed; 'lru' is the one unused for longest.",
        "When a replay of your own traffic shows more hits with another policy.",
    )
    eviction_threshold: float = option(
        0.0,
        Share(),
        "Share of free blocks below which reclaim starts in the background; 0 is off: cached pages stay until their "
        "blocks are needed.",
        "With a lower tier, 0.1 keeps blocks ready so that no step waits; without one it only shortens what is cached.",
    )
    pinned_share: float = option(
        0.5,
        Fraction(),
        "Share of the pool that retentions may pin together; what they want beyond is clipped or refused.",
        "Lower it where clients pin more than is good for the others; 0 allows no pins.",
    )
    quotas: tuple[TenantQuota, ...] = option(
        (),
        Quotas(),
        "What tenants (the salt of a request's scope) may hold on each tier, and the weight of their fair share. The "
        "flag is given once for each tenant; the variable separates them with ';'.",
        "To keep one tenant's traffic from driving out what others need; docs/retention.md says what is promised.",
    )
    prefix_cache: bool = option(
        True,
        Flag(),
        "Keep the pages of finished requests and reuse them for prompts that begin alike.",
        "Off to measure without reuse.",
    )
    partial_hits: bool = option(
        True,
        Flag(),
        "Reuse the common beginning of a page as well, by copying it on write.",
        "Off if prompts part at page borders anyway; it then saves a look-up.",
    )
    max_running: int = option(
        256,
        Whole(1),
        "Sequences that run at the same time, at most.",
        "Lower it for faster single answers; raise it for more tokens per second if the pool has room.",
    )
    max_batch_tokens: int = option(
        512,
        Whole(1),
        "Tokens computed in one step, at most; longer prompts are cut into chunks.",
        "Raise it for faster prompts; lower it for steadier gaps between the tokens of running requests.",
    )
    max_waiting: int = option(
        1024,
        Whole(1),
        "Requests that may wait to run; more are refused at once.",
        "Lower it to refuse early under overload; raise it for large offline batches.",
    )
    demand_paging: str = option(
        AUTO,
        Text("'auto' or 'off'", "auto|off"),
        "Requests that do not fit into the pool: 'auto' runs them all the same where a tier below can hold the rest of "
        "their pages, which each step then reads from there; 'off' refuses them.",
        "'off' where such a request should fail at once rather than be slow.",
    )
    resident_share: float = option(
        0.5,
        PositiveFraction(),
        "Share of the pool that a request which does not fit may keep on the device; one that comes beside it may keep "
        "the same share of what is left, and so on.",
        "0.9 where one such request runs at a time: what is kept need not be read again for each token. Lower it to "
        "leave more room to ordinary requests.",
    )
    window: str | int = option(
        "64MiB",
        Bytes(),
        "Memory through which pages of such requests are read from a disk or a remote tier, a layer at a time.",
        "Raise it where reading waits in spite of a fast tier; an error says the least that a model needs.",
    )
    attend: str = option(
        "exact",
        AttendText(),
        "How requests attend to their context unless they say so themselves: 'exact', or approximately: answers then "
        "differ from those of the whole context, and say so.",
        "For long contexts where speed matters more than the exact answer; docs/log.md has figures.",
    )
    max_context: int | None = option(
        None,
        Whole(1, none="the model's own limit"),
        "Tokens of prompt and answer together, at most, per request.",
        "Lower it so that no single request can take the whole pool.",
    )
    attention: str = option(
        AUTO,
        Text("'auto' or the name of an attention backend", _NAME),
        "What computes attention over the pages; 'auto' is the fastest that works here.",
        "'reference' to check a result against the plain computation.",
    )
    native: str = option(
        AUTO,
        Text(
            "'auto', 'off', 'portable', 'avx2', 'avx512', 'avx512_bf16' or 'amx'",
            "auto|off|portable|avx2|avx512|avx512_bf16|amx",
        ),
        "Native CPU kernels of the whole process: 'auto' is the best instruction set that the build and the processor "
        "have, 'off' computes with torch.",
        "To find out whether a kernel is to blame: 'off', or a lesser instruction set.",
    )
    fused_layers: bool = option(
        True,
        Flag(),
        "Native kernels between the matrix products of plain Llama-like layers on a CPU; other models run as they are.",
        "Off to run the model's own modules, for instance to compare.",
    )
    deterministic: bool = option(
        False,
        Flag(),
        "The same bits with and without prefix hits, preemption and batch mates, at some speed.",
        "On for tests, audits and comparisons of runs.",
    )
    seed: int | None = option(
        0,
        Whole(0, high=2**64 - 1, none="a fresh one each start"),
        "Seed of the requests that bring none of their own.",
        "To draw other answers from the same prompts.",
    )
    record: str | None = option(
        None,
        File(none="nothing is recorded"),
        "A new file to record requests in, as a trace for `kvpager replay`: hashes of pages, times and counts, no text "
        "and no tokens.",
        "For a while under your own traffic, to choose the eviction policy and the capacity by it.",
    )
    debug: bool = option(
        False,
        Flag(),
        f"Poison blocks when they are freed and check them when they are given out. {DEBUG_ALIAS}=1 is short for it.",
        "On to find a use after free; it costs a write of each freed block.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
