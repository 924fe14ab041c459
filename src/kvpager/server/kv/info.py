"""/v1/kv/info: what the memory is and holds. Operators see all of it, others what any client must know and their own.

Figures are of one moment, and add up. Nothing here names a request, a salt or a folder.
"""

import asyncio
from dataclasses import asdict
from time import perf_counter
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from kvpager.cache.quotas import TenantUsage
from kvpager.engine.engine import Engine
from kvpager.metrics.snapshot import Snapshot, take
from kvpager.server.engine_thread import EngineGone
from kvpager.server.service import Service, service_of
from kvpager.server.start_block import LENGTHS, num_that_fit
from kvpager.server.tenant import Tenant, tenant_of
from kvpager.tiers.tier import TierStatistics, TransferCounts
from kvpager.types import TierKind

router = APIRouter()
_PATIENCE = 2.0  # seconds
_OPTIONS = (
    "dtype", "kv_dtype", "tier_dtype", "write_back", "load_deadline", "eviction", "eviction_threshold", "pinned_share",
    "prefix_cache", "partial_hits", "max_running", "max_batch_tokens", "max_waiting", "demand_paging", "attend",
    "attention", "deterministic",
)  # fmt: skip


@router.get("/v1/kv/info")
async def info(request: Request, service: Annotated[Service, Depends(service_of)]) -> dict[str, Any]:
    tenant = tenant_of(request)
    snapshot = await _fresh(service)
    told = _of_the_model(service) | {"tenant": _of_the_tenant(tenant, snapshot)}
    return told | _of_all(service.engine, snapshot) if tenant.is_operator else told


async def _fresh(service: Service) -> Snapshot:
    """Of now, so that it shows what the caller has just done; the last there is, if the engine does not answer."""
    try:
        async with asyncio.timeout(_PATIENCE):
            return await service.thread.call(lambda engine: take(engine, perf_counter()))
    except (TimeoutError, EngineGone):
        return await service.thread.snapshot()


def _of_the_model(service: Service) -> dict[str, Any]:
    engine, layout = service.engine, service.engine.layout
    return {
        "model": service.model_name,
        "page_size": layout.page_size,
        "bytes_per_token": layout.bytes_per_token,
        "max_model_len": engine.max_request_tokens,
    }


def _of_the_tenant(tenant: Tenant, snapshot: Snapshot) -> dict[str, Any]:
    """``usage`` is null until the first quota or priority: nobody's pages are counted before."""
    retention = snapshot.cache.retention
    usage = None if retention is None else retention.tenants.get(tenant.name)
    return {"name": tenant.name, "is_operator": tenant.is_operator, "usage": None if usage is None else _usage(usage)}


def _usage(usage: TenantUsage) -> dict[str, Any]:
    return {
        "blocks": _by_tier(usage.blocks),
        "bytes": usage.bytes,
        "weight": usage.weight,
        "quota": None if usage.quota is None else _by_tier(usage.quota),
    }


def _of_all(engine: Engine, snapshot: Snapshot) -> dict[str, Any]:
    cache, layout = snapshot.cache, engine.layout
    return {
        "layout": {
            "kv_dtype": layout.dtype,
            "layers": layout.layers,
            "groups": [
                {"layers": len(group.layers), "kv_heads": group.kv_heads, "head_dim": group.head_dim,
                 "window": group.window}
                for group in layout.groups
            ],
            "block_bytes": layout.block_bytes,
        },
        "pool": {**asdict(cache.blocks), "shared": cache.shared_blocks, "waste_tokens": cache.waste_tokens},
        "tiers": [_device(engine, snapshot), *(_lower(engine, snapshot, tier) for tier in cache.tiers)],
        "policy": {"eviction": engine.options.eviction, **asdict(cache.reclaim)},
        "concurrency": concurrency(engine),
        "options": {name: getattr(engine.options, name) for name in _OPTIONS},
        "requests": {
            "running": snapshot.engine.running,
            "waiting": snapshot.engine.waiting,
            "finished": snapshot.engine.finished_requests,
            "preemptions": snapshot.engine.preemptions,
            "prompt_tokens": snapshot.engine.prompt_tokens,
            "prefix_tokens": snapshot.engine.prefix_tokens,
            "prefix_by_tier": _by_tier(snapshot.engine.prefix_by_tier),
            "generated_tokens": snapshot.engine.generated_tokens,
        },
        "faults": {kind.name.lower(): asdict(count) for kind, count in cache.faults.items()},
        "retention": _retention(snapshot),
    }  # fmt: skip


def concurrency(engine: Engine) -> list[dict[str, int]]:
    """How many requests of a length fit on the device together, sharing nothing; up to the longest there may be."""
    longest = engine.max_request_tokens
    lengths = sorted({*(length for length in LENGTHS if length < longest), longest})
    return [{"tokens": length, "requests": num_that_fit(engine, length)} for length in lengths]


def _device(engine: Engine, snapshot: Snapshot) -> dict[str, Any]:
    blocks = snapshot.cache.blocks
    return _tier(
        engine,
        "device",
        TierKind.DEVICE,
        capacity_blocks=blocks.total,
        used_blocks=blocks.total - blocks.free,
        block_bytes=snapshot.cache.block_bytes,
        hits=snapshot.cache.prefix.by_tier.get(TierKind.DEVICE, 0),
    )


def _tier(
    engine: Engine, name: str, kind: TierKind, *, capacity_blocks: int, used_blocks: int, block_bytes: int, hits: int
) -> dict[str, Any]:
    """A page takes a block in each layer group."""
    groups, page_size = engine.layout.num_groups, engine.layout.page_size
    return {
        "name": name,
        "kind": kind.name.lower(),
        "state": "ok",
        "capacity_bytes": capacity_blocks * block_bytes,
        "used_bytes": used_blocks * block_bytes,
        "capacity_pages": capacity_blocks // groups,
        "pages": used_blocks // groups,
        "capacity_tokens": capacity_blocks // groups * page_size,
        "hit_tokens": hits,
    }


def _lower(engine: Engine, snapshot: Snapshot, tier: TierStatistics) -> dict[str, Any]:
    """Where a tier does not say how much it takes, its capacity is null."""
    usage, groups = tier.usage, engine.layout.num_groups
    is_bounded = usage.capacity_bytes > 0
    pages = usage.blocks // groups if is_bounded else None
    return {
        "name": tier.name,
        "kind": usage.kind.name.lower(),
        "state": tier.state,
        "capacity_bytes": usage.capacity_bytes if is_bounded else None,
        "used_bytes": usage.used_bytes,
        "capacity_pages": pages,
        "pages": tier.pages // groups,
        "capacity_tokens": None if pages is None else pages * engine.layout.page_size,
        "hit_tokens": snapshot.cache.prefix.by_tier.get(usage.kind, 0),
        "stored": _transfers(tier.stored),
        "loaded": _transfers(tier.loaded),
        "evicted": tier.evicted,
        "refused": tier.refused,
        "declined": tier.declined,
        "quarantined": tier.quarantined,
    }


def _transfers(counts: TransferCounts) -> dict[str, Any]:
    return {"pages": counts.pages, "bytes": counts.bytes, "seconds": counts.seconds, "failed": counts.failed}


def _retention(snapshot: Snapshot) -> dict[str, Any] | None:
    retention = snapshot.cache.retention
    if retention is None:
        return None
    return {
        "retentions": retention.retentions,
        "pages": retention.pages,
        "pinned": retention.pinned,
        "max_pinned": retention.max_pinned,
        "dropped_by_ttl": retention.dropped_by_ttl,
        "dropped_by_quota": retention.dropped_by_quota,
        "pins_yielded": retention.pins_yielded,
        "tenants": {name: _usage(usage) for name, usage in sorted(retention.tenants.items())},
    }


def _by_tier(counts: dict[TierKind, int]) -> dict[str, int]:
    return {kind.name.lower(): count for kind, count in counts.items()}
