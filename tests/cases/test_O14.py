"""O-14 Keys carry the format and do not depend on the process.

Process 1 is killed in the middle of its second prompt; this process has another seed of Python's hash().
There is no tensor parallelism yet: a rank's share of the heads is named by the fingerprint, as whoever adds it has to.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvpager import DiskTier, KVLayout, open_cache
from kvpager.prefix import hashing
from tests.restarted import NEW_TOKENS, answer, killed, open_engine
from tests.stamp import Stamp, T
from tests.tiny_model import ref, sharp_prompt

PROMPT = sharp_prompt(random.Random(14), 64, NEW_TOKENS)
CHANGES: dict[str, dict[str, object]] = {
    "dtype bf16": {"dtype": "bfloat16"},
    "page of 32": {"page_size": 32},
    "other weights": {"seed": 1},
    "other head count": {"num_key_value_heads": 4},
    "other layout": {"num_hidden_layers": 3},
    "deterministic mode, which needs the very same bits": {"deterministic": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where process 1 left its pages."""
    folder = tmp_path_factory.mktemp("O14") / "kv"
    first = killed(folder, PROMPT, hash_seed=1)
    assert first["found"] == 0
    assert first["tokens"] == ref(PROMPT, NEW_TOKENS)
    assert first["hash"] != hash("kvpager"), "this process hashes differently"
    return folder


@pytest.fixture(autouse=True)
def _the_first_settings_hit_again(folder: Path) -> Iterator[None]:
    yield
    _hits(folder)


def _hits(folder: Path) -> None:
    with open_engine(folder) as engine:
        found = answer(engine, PROMPT)
    assert found["tokens"] == ref(PROMPT, NEW_TOKENS)
    assert found["by_tier"] == {"DISK": 48}


def test_another_process_finds_what_the_killed_one_stored(folder: Path) -> None:
    _hits(folder)


@pytest.mark.heavy
def test_a_process_with_another_hash_seed_finds_it_and_may_be_killed_too(folder: Path) -> None:
    second = killed(folder, PROMPT, hash_seed=2)
    assert second["by_tier"] == {"DISK": 48}
    assert second["tokens"] == ref(PROMPT, NEW_TOKENS)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_one_change_and_nothing_is_reused(folder: Path, change: dict[str, object]) -> None:
    with open_engine(None, **change) as engine:  # type: ignore[arg-type]
        cold = answer(engine, PROMPT)
    with open_engine(folder, **change) as engine:  # type: ignore[arg-type]
        found = answer(engine, PROMPT)
    assert found["found"] == 0
    assert found["tokens"] == cold["tokens"]


def test_another_format_version_and_nothing_is_reused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(hashing, "FORMAT_VERSION", hashing.FORMAT_VERSION + 1)
        with open_engine(folder) as engine:
            found = answer(engine, PROMPT)
    assert found["found"] == 0
    assert found["tokens"] == ref(PROMPT, NEW_TOKENS)


def test_ranks_do_not_share_pages(tmp_path: Path) -> None:
    layout = KVLayout(layers=2, kv_heads=1, head_dim=8, dtype="float32", page_size=16)
    for rank, expected in ((0, 0), (1, 0), (0, 48), (1, 48)):
        fingerprint = b"the model, rank %d of 2" % rank
        tiers = [DiskTier(tmp_path / "kv", "8MiB")]
        with open_cache(layout, num_blocks=16, tiers=tiers, fingerprint=fingerprint) as cache:
            stamp = Stamp(cache)
            seq = cache.sequence(T(1, 64))
            assert seq.prefix_tokens == expected
            stamp.write(seq)
            stamp.verify(seq)
