"""Open case O-12, library part: adapter or weights changed under the same name."""

from kvpager import KVLayout, Scope, open_cache
from tests.stamp import Stamp, T, block_counts, prefill, run_step

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=4, dtype="float32", page_size=16)
P = T(1, 48)


def test_a_new_version_of_an_adapter_finds_nothing_of_the_old_one() -> None:
    with open_cache(LAYOUT, num_blocks=32, fingerprint=b"base") as cache:
        stamp = Stamp(cache)
        one, two = (Scope(adapter="a", adapter_version=version) for version in "12")
        prefill(stamp, P, scope=one).free()
        assert cache.lookup([*P, 49], one).num_tokens == 48  # the control
        assert cache.lookup([*P, 49], two).num_tokens == 0
        assert prefill(stamp, P, scope=two).prefix_tokens == 0
        block_counts(cache)


def test_after_the_base_weights_are_replaced_nothing_computed_before_is_found() -> None:
    with open_cache(LAYOUT, num_blocks=32, fingerprint=b"one") as cache:
        stamp = Stamp(cache)
        scopes = [Scope(), Scope(adapter="a", adapter_version="1"), Scope(salt="s")]
        for scope in scopes:
            prefill(stamp, P, scope=scope).free()
        assert [cache.lookup([*P, 49], scope).num_tokens for scope in scopes] == [48] * 3  # the control
        cache.set_fingerprint(b"two")
        assert [cache.lookup([*P, 49], scope).num_tokens for scope in scopes] == [0] * 3
        assert block_counts(cache)["free"] == 32
        prefill(stamp, P).free()
        assert cache.lookup([*P, 49]).num_tokens == 48
        cache.set_fingerprint(b"one")
        assert cache.lookup([*P, 49]).num_tokens == 0, "the same name again does not bring back what was dropped"


def test_a_sequence_that_runs_during_the_change_finishes_with_its_own_pages_and_publishes_nothing() -> None:
    with open_cache(LAYOUT, num_blocks=32, fingerprint=b"one") as cache:
        stamp = Stamp(cache)
        running = prefill(stamp, P)
        running.append(T(100, 120))
        with cache.step({running: 21}) as step:
            cache.set_fingerprint(b"two")
            cache.check()
            stamp.fill(step)
        running.append(T(200, 230))
        run_step(stamp, [running])
        stamp.verify(running)
        assert cache.lookup([*running.tokens, 1]).num_tokens == 0
        twin = running.fork()
        twin.append(T(300, 340))
        run_step(stamp, [twin])
        stamp.verify(twin)
        assert cache.lookup([*twin.tokens, 1]).num_tokens == 0
        cache.free([running, twin])
        assert block_counts(cache)["free"] == 32


def test_a_prompt_waiting_during_the_change_is_computed_with_the_new_weights_only() -> None:
    """Made before, not begun: its hit would mix old pages with new ones, so it is not published either."""
    with open_cache(LAYOUT, num_blocks=32, fingerprint=b"one") as cache:
        stamp = Stamp(cache)
        prefill(stamp, P).free()
        waiting = cache.sequence([*P, *T(100, 120)])
        assert waiting.prefix_tokens == 48
        cache.set_fingerprint(b"two")
        run_step(stamp, [waiting])
        stamp.verify(waiting)
        assert cache.lookup([*waiting.tokens, 1]).num_tokens == 0
        cache.check()
