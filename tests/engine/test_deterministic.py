"""Deterministic mode: every row of logits and every byte of K and V as in a run alone, whatever happens around it."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from kvpager.engine import Engine, Sampling
from tests.engine.determinism import NEW, Recorder, Rows, Seen, run_forks, run_schedules, solos
from tests.engine.engines import checked_step, drive
from tests.tiny_model import is_sharp, random_tokens, ref, threads, tiny_model

SCHEDULES = (100, pytest.param(200, marks=pytest.mark.heavy))  # half of them with each number of threads
ROOT = Path(__file__).parents[2]


def assert_enough(seen: Seen, schedules: int) -> None:
    """The schedules did go through what they are about."""
    assert seen.prefix_tokens > 10 * schedules, seen
    assert seen.preemptions > schedules, seen
    assert seen.cancelled > schedules // 10, seen
    assert seen.together >= 5, seen


@pytest.mark.slow
@pytest.mark.parametrize("schedules", SCHEDULES)
def test_logits_keys_and_values_are_bit_equal_in_random_schedules_with_one_thread(schedules: int) -> None:
    with threads(1):
        assert_enough(run_schedules(range(schedules // 2)), schedules // 2)


@pytest.mark.slow
@pytest.mark.parametrize("schedules", SCHEDULES)
def test_logits_keys_and_values_are_bit_equal_in_random_schedules_with_two_threads(schedules: int) -> None:
    """In a process of its own, see determinism.py; forks too."""
    code = f"from tests.engine.determinism import main; main(2, {schedules // 2}, {schedules})"
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    environment.pop("OMP_NUM_THREADS", None)
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
        timeout=280,
    )
    assert run.returncode == 0, f"replay: OMP_WAIT_POLICY=passive python -c {code!r}\n{run.stderr[-3000:]}"
    assert_enough(Seen(**json.loads(run.stdout.splitlines()[-1])), schedules // 2)


def test_forks_have_the_bits_of_requests_of_their_own() -> None:
    with threads(1):
        run_forks()


def test_the_default_mode_is_not_bit_equal_here() -> None:
    """The control: the comparison sees the last bits, and they do depend on the batch without the mode."""
    library = solos(random.Random(0))
    differing = 0
    for solo in library[:10]:
        rows: list[Rows] = []
        for chunk in (512, 17):
            with Engine(tiny_model(), page_size=16, num_blocks=64, max_batch_tokens=chunk) as engine:
                recorder = Recorder()
                with recorder.listening_to(engine):
                    engine.submit(solo.prompt, Sampling(max_tokens=NEW))
                    drive(engine)
                rows.append(recorder.rows[0])
        differing += rows[0] != rows[1]
    assert differing > 0


def test_the_mode_gives_the_tokens_of_plain_generation() -> None:
    generator = random.Random(2)
    for solo in solos(generator):
        if is_sharp(solo.prompt, NEW):
            with Engine(tiny_model(), page_size=16, num_blocks=64, deterministic=True) as engine:
                (done,) = engine.generate([solo.prompt], Sampling(max_tokens=NEW))
                assert list(done.token_ids) == ref(solo.prompt, NEW)


def test_only_whole_canonical_pieces_of_prompts_are_published_and_reused() -> None:
    generator = random.Random(3)
    prompt = random_tokens(generator, 150)
    with Engine(tiny_model(), page_size=16, num_blocks=64, deterministic=True) as engine:
        found = []
        answer: list[int] = []
        for tokens in (prompt, prompt, prompt[:129], prompt[:128], prompt[:100], [*prompt, *range(100)]):
            request = engine.submit(tokens, Sampling(max_tokens=30))
            while engine.has_work:
                checked_step(engine)
            done = request.completions()[0]
            found.append(done.prefix_tokens)
            answer = answer or list(done.token_ids)
            assert engine.cache.statistics().published_blocks <= 192 // 16
        assert found == [0, 128, 128, 64, 64, 128]
        (done,) = engine.generate([[*prompt, *answer, 7]], Sampling(max_tokens=1))
        assert done.prefix_tokens == 128  # generated tokens were computed one by one: other bits
