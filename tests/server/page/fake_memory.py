"""A memory that behaves like one, without a model: requests come, share prefixes, fork, grow, end; pages are evicted.

Makes frames as metrics/block_view.py describes them. Only for tests of the page, and to look at it with any size.
"""

import random
from base64 import b64encode
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FREE, USED, CACHED, MOVING = range(4)
PAGE_SIZE = 32
BLOCK_BYTES = 384 * 1024
ANSWER_TOKENS = 2048  # that a server without pages would reserve


@dataclass
class Branch:
    owner: int
    request: str
    session: str
    choice: int
    blocks: list[int]
    tokens: int
    prompt: int
    until: int
    parent: int | None = None
    prefix: int = 0
    pace: int = 3


@dataclass
class FakeMemory:
    num_blocks: int = 2000
    seed: int = 7
    now: float = 1_800_000_000.0
    uptime: float = 512.0
    branches: list[Branch] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = self.num_blocks
        self.random = random.Random(self.seed)
        self.state = np.zeros(n, np.uint8)
        self.owner = np.zeros(n, np.uint16)
        self.mappings = np.zeros(n, np.uint8)
        self.tokens = np.zeros(n, np.uint8)
        self.free = deque(range(n))
        self.cached: dict[int, None] = {}  # the longest unused first
        self.moving: list[int] = []
        self.prefixes: list[list[int]] = []
        self.seq = self.evictions = self.prompt_tokens = self.host_hits = self.device_hits = self.last_owner = 0
        self.host_pages = self.num_blocks // 4
        self.activity: list[dict[str, Any]] = []
        self.generated: deque[int] = deque([0], 8)  # tokens in each of the last steps
        self.faults: deque[int] = deque([0], 8)
        self.total = 0
        self.target = max(4, n // 140)

    # -- what happens --

    def step(self, seconds: float = 0.25) -> None:
        self.now += seconds
        self.uptime += seconds
        self.generated.append(sum(branch.pace for branch in self.branches))
        self.total += self.generated[-1]
        self.faults.append(0)
        self._settle()
        for branch in list(self.branches):
            self._grow(branch)
            if branch.tokens >= branch.until:
                self._end(branch)
        while len(self.branches) < self.target and len(self.free) + len(self.cached) > 80:
            self._begin()

    def _settle(self) -> None:
        for block in self.moving:
            self.state[block], self.tokens[block] = FREE, 0
            self.free.append(block)
        self.moving.clear()
        if len(self.free) < self.num_blocks // 12:
            count = min(len(self.cached), max(1, self.num_blocks // 60))
            for _ in range(count):
                block = next(iter(self.cached))
                del self.cached[block]
                self.state[block] = MOVING
                self.moving.append(block)
            if count:
                self.evictions += count
                self.host_pages = min(self.host_pages + count, self.num_blocks)
                self._act("demote", "host", count, 0.03 + count / 9000)
                self._act("eviction", "device", count, 0.0)

    def _take(self, owner: int) -> int | None:
        if not self.free:
            return None
        # Not the lowest: after a while a real pool is as mixed.
        self.free.rotate(-self.random.randrange(min(3, len(self.free))))
        block = self.free.popleft()
        self.state[block], self.owner[block], self.mappings[block], self.tokens[block] = USED, owner, 1, 0
        return block

    def _begin(self) -> None:
        pages = self.random.choice([6, 9, 14, 22, 35, 60, 110])
        self.last_owner += 1
        name = f"chatcmpl-{self.random.getrandbits(48):012x}"
        branch = Branch(
            self.last_owner, name, f"session-{self.last_owner % 9}", 0, [], 0, pages * PAGE_SIZE,
            pages * PAGE_SIZE + self.random.randrange(40, 700), pace=self.random.randrange(2, 12),
        )  # fmt: skip
        if self.prefixes and self.random.random() < 0.6:
            shared = [b for b in self.random.choice(self.prefixes) if self.state[b] in (USED, CACHED)]
            for block in shared:
                self._map(block, branch.owner)
            branch.blocks, branch.prefix = list(shared), len(shared) * PAGE_SIZE
        branch.tokens = len(branch.blocks) * PAGE_SIZE
        self.prompt_tokens += branch.prompt
        on_host = self.random.randrange(0, max(1, branch.prefix // 3)) if branch.prefix else 0
        self.host_hits += on_host
        self.device_hits += branch.prefix - on_host
        if on_host > PAGE_SIZE:
            self._act("promote", "host", on_host // PAGE_SIZE, 0.02)
            self._act("major_fault", "host", on_host // PAGE_SIZE, 0.05)
        while branch.tokens < branch.prompt and self._extend(branch):
            pass
        if self.random.random() < 0.4:
            self.prefixes = [*self.prefixes[-6:], branch.blocks[: self.random.randrange(4, 12)]]
        self.branches.append(branch)
        self._act("demand_fault", "device", len(branch.blocks), 0.01)
        if self.random.random() < 0.3:
            self._fork(branch)

    def _map(self, block: int, owner: int) -> None:
        if self.state[block] == CACHED:
            del self.cached[block]
            self.owner[block] = owner
        self.state[block] = USED
        self.mappings[block] += 1

    def _fork(self, parent: Branch) -> None:
        self.last_owner += 1
        child = Branch(
            self.last_owner, parent.request, parent.session, 1, list(parent.blocks), parent.tokens, parent.prompt,
            parent.until + 40, parent=parent.owner, prefix=parent.tokens,
        )  # fmt: skip
        for block in child.blocks:
            self._map(block, child.owner)
        self.branches.append(child)

    def _extend(self, branch: Branch) -> bool:
        block = self._take(branch.owner)
        if block is None:
            return False
        branch.blocks.append(block)
        self.tokens[block] = PAGE_SIZE
        branch.tokens += PAGE_SIZE
        return True

    def _grow(self, branch: Branch) -> None:
        for _ in range(branch.pace):
            slot = branch.tokens % PAGE_SIZE
            if slot == 0 or not branch.blocks:
                block = self._take(branch.owner)
                if block is None:
                    return
                branch.blocks.append(block)
                self._act("demand_fault", "device", 1, 0.001)
            last = branch.blocks[-1]
            if self.mappings[last] > 1:
                copy = self._take(branch.owner)
                if copy is None:
                    return
                self.mappings[last] -= 1
                branch.blocks[-1] = last = copy
                self._act("copy_on_write", "device", 1, 0.002)
            branch.tokens += 1
            self.tokens[last] = slot + 1

    def _end(self, branch: Branch) -> None:
        self.branches.remove(branch)
        for block in branch.blocks:
            self.mappings[block] -= 1
            if self.mappings[block]:
                self.owner[block] = next(each.owner for each in self.branches if block in each.blocks)
                continue
            self.owner[block] = 0
            if self.tokens[block] == PAGE_SIZE:
                self.state[block] = CACHED
                self.cached[block] = None
            else:
                self.state[block], self.tokens[block] = FREE, 0
                self.free.append(block)

    def _act(self, kind: str, tier: str, pages: int, seconds: float) -> None:
        self.faults[-1] += pages if "fault" in kind else 0
        event = {"time": self.now, "kind": kind, "tier": tier, "pages": pages, "seconds": seconds, "span": 0.25}
        self.activity.append(event)

    # -- how it is told --

    def frame(self, before: dict[str, np.ndarray] | None = None) -> dict[str, Any]:
        self.seq += 1
        activity, self.activity = self.activity[-200:], []
        return self._figures() | {"activity": activity, "blocks": self.blocks(before)}

    def columns(self) -> dict[str, np.ndarray]:
        columns = {"state": self.state, "owner": self.owner, "mappings": self.mappings, "tokens": self.tokens}
        return {name: column.copy() for name, column in columns.items()}

    def blocks(self, before: dict[str, np.ndarray] | None) -> dict[str, Any]:
        columns = self.columns()
        if before is None:
            return {"full": True, **{name: _text(column) for name, column in columns.items()}}
        differs = np.zeros(self.num_blocks, bool)
        for name, column in columns.items():
            differs |= column != before[name]
        at = np.flatnonzero(differs).astype(np.uint32)
        changed = {name: _text(column[at]) for name, column in columns.items()}
        return {"full": False, "since": self.seq - 1, "at": _text(at), **changed}

    def _figures(self) -> dict[str, Any]:
        counts = np.bincount(self.state, minlength=4).tolist()
        used = counts[USED]
        tokens = sum(branch.tokens for branch in self.branches)
        held = max(1, used) * BLOCK_BYTES
        reserved = sum(-(-(b.prompt + ANSWER_TOKENS) // PAGE_SIZE) for b in self.branches) * BLOCK_BYTES
        waste = float(np.sum(PAGE_SIZE - self.tokens[self.state == USED].astype(int))) / max(1, used * PAGE_SIZE)
        is_full = counts[FREE] < self.num_blocks // 10
        since = self.now - 12
        alert = {"name": "KvpagerReclaimPressure", "severity": "warning", "since": since, "value": 0.93,
                 "summary": "93 % of the blocks are held; every new page needs one that is evicted."}  # fmt: skip
        hits = self.device_hits + self.host_hits
        return {
            "seq": self.seq, "time": self.now, "uptime": self.uptime, "model": "SmolLM2-360M-Instruct",
            "states": ["free", "used", "cached", "moving"],
            "pool": {
                "blocks": self.num_blocks, "page_size": PAGE_SIZE, "block_bytes": BLOCK_BYTES, "free": counts[FREE],
                "used": used, "cached": counts[CACHED], "moving": counts[MOVING],
                "shared": int((self.mappings > 1).sum()),
            },
            "owners": [self._owner(branch) for branch in self.branches[:512]],
            "generated_tokens": self.total,
            "waiting": 3, "running": len(self.branches),
            "tiers": [
                {"name": "device", "kind": "device", "capacity_bytes": self.num_blocks * BLOCK_BYTES,
                 "used_bytes": (self.num_blocks - counts[FREE]) * BLOCK_BYTES, "pages": self.num_blocks - counts[FREE],
                 "evicted": self.evictions, "hit_tokens": self.device_hits, "state": "ok"},
                {"name": "host", "kind": "host", "capacity_bytes": self.num_blocks * BLOCK_BYTES * 2,
                 "used_bytes": self.host_pages * BLOCK_BYTES, "pages": self.host_pages, "evicted": self.evictions // 7,
                 "hit_tokens": self.host_hits, "state": "ok"},
                {"name": "disk", "kind": "disk", "capacity_bytes": self.num_blocks * BLOCK_BYTES * 8,
                 "used_bytes": self.evictions // 7 * BLOCK_BYTES, "pages": self.evictions // 7, "evicted": 0,
                 "hit_tokens": 0, "state": "ok"},
            ],
            "prefix": {"prompt_tokens": self.prompt_tokens, "hit_tokens": hits,
                       "by_tier": {"device": self.device_hits, "host": self.host_hits, "disk": self.host_hits // 5}},
            "faults": {"demand": {"pages": 3 * self.seq, "seconds": 0.4}, "major": {"pages": self.seq, "seconds": 0.2}},
            "preemptions": 2, "evictions": self.evictions,
            "rates": {"tokens_per_second": 4.0 * self.generated[-1],
                      "hit_rate": hits / max(1, self.prompt_tokens),
                      "faults_per_second": sum(self.faults) / 2.0},
            "contiguous": {
                "paged_used_bytes": held, "paged_waste_share": waste, "reserved_bytes": reserved,
                "reserved_waste_share": 1 - min(1.0, tokens / PAGE_SIZE * BLOCK_BYTES / max(1, reserved)),
                "context_bytes": 3 * reserved, "context_waste_share": 0.96,
                "fits_paged": self.num_blocks // 40, "fits_contiguous": self.num_blocks // 130,
                "fits_context": self.num_blocks // 400,
            },
            "alerts": [alert] if is_full else [],
        }  # fmt: skip

    def _owner(self, branch: Branch) -> dict[str, Any]:
        shared = int((self.mappings[branch.blocks] > 1).sum()) if branch.blocks else 0
        return {
            "owner": branch.owner, "request": branch.request, "session": branch.session, "choice": branch.choice,
            "state": "running", "prompt_tokens": branch.prompt, "tokens": branch.tokens,
            "generated": max(0, branch.tokens - branch.prompt), "pages": len(branch.blocks), "shared_pages": shared,
            "prefix_tokens": branch.prefix, "is_slow": branch.owner % 23 == 0, "attention": "exact",
        }  # fmt: skip

    def tables(self) -> dict[str, Any]:
        return {"tables": [self._table(branch) for branch in self.branches[:60]], "left_out": 0}

    def _table(self, branch: Branch) -> dict[str, Any]:
        pages = [
            {"page": i, "block": block, "tier": "device", "shared": bool(self.mappings[block] > 1),
             "filled": int(self.tokens[block])}
            for i, block in enumerate(branch.blocks)
        ]  # fmt: skip
        if len(pages) > 12 and branch.owner % 4 == 0:
            pages[3:6] = [{**page, "block": None, "tier": "host", "shared": False} for page in pages[3:6]]
        return {
            "owner": branch.owner, "request": branch.request, "choice": branch.choice, "group": 0,
            "parent": branch.parent, "pages": pages, "num_pages": len(pages), "first_page": 0,
        }  # fmt: skip


def _text(column: np.ndarray) -> str:
    return b64encode(column.tobytes()).decode("ascii")
