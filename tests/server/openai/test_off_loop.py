"""Work beside the event loop, and its end when its time is over."""

import asyncio
import contextlib
import threading

import pytest

from kvpager.server.openai.off_loop import OffLoop, OutOfTime


def endless() -> None:
    while True:
        sum(range(100))


def stubborn() -> None:
    """As a template might try: what is raised in it is caught, again and again."""
    while True:
        try:
            endless()
        except Exception:
            continue


def test_what_a_function_returns_or_raises_comes_back() -> None:
    async def check() -> None:
        work = OffLoop()
        assert await work.run(threading.get_ident) != threading.get_ident()
        assert await work.run_for("short", threading.get_ident) == threading.get_ident()
        assert await work.run_for("long" * 1000, threading.get_ident) != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await work.run(lambda: 1 // 0, seconds=60)
        work.close()

    asyncio.run(check())


@pytest.mark.parametrize("function", [endless, stubborn])
def test_the_loop_goes_on_and_what_takes_too_long_ends(function: object) -> None:
    async def check() -> None:
        work = OffLoop()
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.01)
                beats += 1

        beating = asyncio.create_task(beat())
        for _ in range(3):  # more than there are threads: each is free again
            with pytest.raises(OutOfTime):
                await work.run(function, seconds=0.1)  # type: ignore[arg-type]
        assert beats > 0
        assert await work.run(lambda: 5, seconds=60) == 5
        beating.cancel()
        work.close()

    asyncio.run(check())


def test_what_still_waits_when_its_time_is_over_is_not_begun() -> None:
    async def check() -> None:
        work = OffLoop()
        hold = threading.Event()
        holding = [asyncio.create_task(work.run(lambda: hold.wait(30))) for _ in range(2)]
        await asyncio.sleep(0)
        begun: list[int] = []
        late = asyncio.create_task(work.run(lambda: begun.append(1), seconds=0.01))
        await asyncio.sleep(0.2)
        hold.set()
        with pytest.raises(OutOfTime):
            await late
        assert not begun
        await asyncio.gather(*holding)
        work.close()

    asyncio.run(check())


def test_who_is_done_in_time_is_never_interrupted() -> None:
    async def check() -> None:
        work = OffLoop()
        for count in range(200):
            with contextlib.suppress(OutOfTime):
                assert await work.run(lambda: sum(range(2000)), seconds=count * 1e-6) >= 0
            assert await work.run(lambda: sum(range(1000))) == 499_500  # nothing of it arrives later
        work.close()

    asyncio.run(check())
