"""An engine over the tiny model and a disk tier, in this process or in one that is killed: for tests of restarts.

As a program: answers the prompt, prints what it found as JSON, begins another prompt, and kills itself in the middle.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import torch

from kvpager.config import DiskTier
from kvpager.engine import Engine, Sampling
from tests.tiny_model import tiny_model

NEW_TOKENS = 6


def open_engine(
    folder: Path | None,
    *,
    seed: int = 0,
    dtype: str = "float32",
    page_size: int = 16,
    deterministic: bool = False,
    **config: int,
) -> Engine:
    """``folder``: of the disk tier; None: without one. ``config``: of the model."""
    model = tiny_model(seed, **config).to(getattr(torch, dtype))
    tiers = [] if folder is None else [DiskTier(folder, "64MiB")]
    return Engine(model, num_blocks=64, page_size=page_size, deterministic=deterministic, tiers=tiers)


def answer(engine: Engine, prompt: list[int]) -> dict[str, object]:
    [done] = engine.generate([prompt], Sampling(max_tokens=NEW_TOKENS))
    return {
        "tokens": list(done.token_ids),
        "found": done.prefix_tokens,
        "by_tier": {tier.name: tokens for tier, tokens in done.prefix_by_tier.items() if tokens},
    }


def killed(folder: Path, prompt: list[int], hash_seed: int) -> dict[str, object]:
    """What a process of its own found, with that seed of Python's hash(), before it ended by SIGKILL."""
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.restarted", str(folder), json.dumps(prompt)]
    root = Path(__file__).parents[1]
    ended = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return json.loads(ended.stdout)


def main(folder: str, prompt: str) -> None:
    engine = open_engine(Path(folder))
    found = answer(engine, json.loads(prompt))
    assert engine.cache.lower is not None
    engine.cache.lower.settle(60)
    print(json.dumps(found | {"hash": hash("kvpager")}), flush=True)
    engine.submit(list(range(100, 200)), Sampling(max_tokens=50))
    for _ in range(10):
        engine.step()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
