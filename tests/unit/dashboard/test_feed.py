"""The feed: one run of changes for all browsers, and nothing kept for any of them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from poise.dashboard import feed as module
from poise.dashboard.feed import Feed

PATIENCE = 120.0


async def got(stream: AsyncIterator[bytes]) -> tuple[str, str, Any]:
    """The kind, the id and the data of the next piece, which may hold several messages; the last one counts."""
    piece = (await asyncio.wait_for(anext(stream), PATIENCE)).decode()
    fields = dict(line.split(": ", 1) for line in piece.strip().splitlines() if line and not line.startswith(":"))
    return fields.get("event", ""), fields.get("id", ""), json.loads(fields.get("data", "null"))


async def begun(feed: Feed, last: str = "") -> AsyncIterator[bytes]:
    stream = feed.stream(last)
    assert await anext(stream) == b": poise\n\n"
    return stream


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test(), PATIENCE))


def test_a_browser_gets_the_whole_picture_and_then_changes() -> None:
    async def test() -> None:
        feed = Feed()
        feed.publish({"nodes": {"n1": 1}})
        feed.publish({"nodes": {"n2": 2}})
        stream = await begun(feed)
        kind, _, data = await got(stream)
        assert (kind, data) == ("whole", {"nodes": {"n1": 1, "n2": 2}})
        feed.publish({"nodes": {"n1": None}})
        kind, _, data = await got(stream)
        assert (kind, data) == ("change", {"nodes": {"n1": None}})

    run(test)


def test_a_browser_that_comes_back_goes_on_where_it_was() -> None:
    async def test() -> None:
        feed = Feed()
        feed.publish({"nodes": {"n1": 1}})
        _, last, _ = await got(await begun(feed))
        feed.publish({"nodes": {"n2": 2}})
        kind, _, data = await got(await begun(feed, last))
        assert (kind, data) == ("change", {"nodes": {"n2": 2}})

    run(test)


@pytest.mark.parametrize("last", ["", "x", "00000000.1", ".", "1.5", "9" * 30])
def test_an_id_of_another_process_gets_the_whole_picture(last: str) -> None:
    async def test() -> None:
        feed = Feed()
        feed.publish({"nodes": {"n1": 1}})
        assert (await got(await begun(feed, last)))[0] == "whole"

    run(test)


def test_an_id_of_this_process_that_was_never_given_gets_the_whole_picture() -> None:
    async def test() -> None:
        feed = Feed()
        feed.publish({"nodes": {"n1": 1}})
        _, last, _ = await got(await begun(feed))
        assert (await got(await begun(feed, last.partition(".")[0] + ".77")))[0] == "whole"

    run(test)


def test_a_slow_browser_is_dropped_to_a_snapshot_and_nothing_is_kept_for_it() -> None:
    async def test() -> None:
        feed = Feed()
        feed.publish({"nodes": {"n": 0}})
        slow = await begun(feed)
        await got(slow)
        for number in range(3 * module.KEPT):
            feed.publish({"nodes": {"n": number}})
        assert len(feed._changes) == module.KEPT
        kind, _, data = await got(slow)
        assert (kind, data) == ("whole", {"nodes": {"n": 3 * module.KEPT - 1}})

    run(test)


def test_changes_are_bounded_in_bytes_too() -> None:
    async def test() -> None:
        feed = Feed()
        for number in range(10):
            feed.publish({"nodes": {f"n{number}": "x" * (module.KEPT_BYTES // 4)}})
            assert feed._bytes <= module.KEPT_BYTES
        assert sum(map(len, feed._changes)) == feed._bytes

    run(test)


def test_silence_is_broken_by_a_comment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALIVE", 0.01)

    async def test() -> None:
        feed = Feed()
        stream = await begun(feed)
        assert await anext(stream) == b": alive\n\n"

    run(test)


def test_a_thousand_browsers_come_and_go_and_leave_nothing() -> None:
    async def test() -> None:
        feed = Feed()
        feed.publish({"nodes": {"n": 0}})
        last = ""
        for number in range(1000):
            stream = await begun(feed, last)
            feed.publish({"nodes": {"n": number}})
            _, last, data = await got(stream)
            assert data == {"nodes": {"n": number}}
            await stream.aclose()  # type: ignore[attr-defined]
        assert len(feed._changes) <= module.KEPT

    run(test)


@pytest.mark.parametrize("turns", range(6))
def test_a_stream_that_is_cancelled_while_a_change_comes_ends(turns: int) -> None:
    async def test() -> None:
        feed = Feed()
        feed.publish({"nodes": {"n": 0}})
        stream = await begun(feed)
        await got(stream)
        waiting = asyncio.ensure_future(anext(stream))
        for _ in range(3):
            await asyncio.sleep(0)
        feed.publish({"nodes": {"n": 1}})
        for _ in range(turns):
            await asyncio.sleep(0)
        came_first = waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled() != came_first

    run(test)


def test_the_end_says_why_and_shows_nothing_more() -> None:
    async def test() -> None:
        feed = Feed()
        feed.publish({"nodes": {"n": 0}})
        stream = await begun(feed)
        await got(stream)
        feed.end("revoked", "the token was revoked")
        kind, _, data = await got(stream)
        assert (kind, data) == ("end", {"why": "revoked", "text": "the token was revoked"})
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert (await got(await begun(feed)))[0] == "end"

    run(test)
