"""Batches of gateways on other machines, as one gateway takes or refuses them."""

import asyncio
import math
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from poise_serve import links
from poise_serve.model.news import FIRST_ELSEWHERE, Batch, Ended, Joined, News, Rests, Sent, Spent
from poise_serve.model.routing import Asked, Prompt
from poise_serve.peers import Peers
from unit.gateway.test_service import until

KEY = "the key that all share"
SPENT = Spent("app", 1, 2)


def made(
    *news: News, gateway: int = FIRST_ELSEWHERE + 1, serial: int = 1, at: float | None = None
) -> tuple[bytes, str]:
    """A batch, and its signature."""
    body = msgspec.msgpack.encode(Batch("elsewhere", gateway, serial, time.time() if at is None else at, list(news)))
    return body, links._signed(KEY.encode(), body).decode()


class One:
    """The links of one gateway."""

    def __init__(self) -> None:
        self.heard: list[News] = []
        self.links = links.Links("here", FIRST_ELSEWHERE, list, self._take, lambda text: None)
        self.links.become([], KEY)

    def _take(self, gateway: int, news: Sequence[News], serial: int) -> None:
        self.heard += news

    def posted(self, *news: News, gateway: int = FIRST_ELSEWHERE + 1, serial: int = 1, at: float | None = None) -> int:
        return self.links.receive(*made(*news, gateway=gateway, serial=serial, at=at))


def test_a_copy_is_refused_after_a_restart_too() -> None:
    at = time.time()
    before, after = One(), One()
    assert before.posted(SPENT, at=time.time()) == links.TAKEN
    assert after.posted(SPENT, at=at) == links.WRONG and after.heard == []
    assert after.posted(SPENT, serial=2) == links.TAKEN and after.heard == [SPENT]


def test_a_copy_is_refused_by_the_other_gateways_of_the_machine_too(tmp_path: Path) -> None:
    async def run() -> None:
        heard: list[News] = []
        one, other = Peers(tmp_path, "g", 0), Peers(tmp_path, "g", 1)
        other.heard.append(lambda gateway, news: heard.append(news))
        for each in (other, one):
            each.links.become([], KEY)
            await each.start(lambda: b"")
        try:
            await until(lambda: Joined() in heard)  # so the first knows the other
            batch = made(SPENT)
            assert one.links.receive(*batch) == links.TAKEN
            await until(lambda: SPENT in heard)
            assert other.links.receive(*batch) == links.WRONG
            assert other.links.receive(*made(SPENT, serial=2)) == links.TAKEN
        finally:
            await one.stop()
            await other.stop()

    asyncio.run(asyncio.wait_for(run(), 20))


@pytest.mark.parametrize("at", [math.nan, math.inf, -1.0, 0.0])
def test_a_batch_of_no_instant_is_refused(at: float) -> None:
    assert One().posted(SPENT, at=at) == links.WRONG


@pytest.mark.parametrize("gateway", [-1, 0, 3, FIRST_ELSEWHERE - 1])
def test_a_batch_with_the_number_of_a_gateway_of_this_machine_is_refused(gateway: int) -> None:
    assert One().posted(SPENT, gateway=gateway) == links.WRONG


@pytest.mark.parametrize(
    "news",
    [
        Spent("app", -1, 0),
        Spent("app", 0, -(2**40)),
        Rests("u0", -1),
        Ended(1, "answered", False, 1, -1.0, None),
        Ended(1, "answered", False, 1, math.nan, None),
        Ended(1, "answered", False, 1, math.inf, None),
        Ended(1, "answered", False, 1, 1.0, math.nan),
        Ended(1, "answered", False, 1, 1.0, 1.5),
        Sent(1, "u0", "m", Asked(size=math.nan)),
        Sent(1, "u0", "m", Asked(prompt=Prompt(-1.0))),
        Sent(1, "u0", "m", Asked(prompt=Prompt(1.0, block=0.0))),
    ],
)
def test_numbers_that_cannot_be_are_refused(news: News) -> None:
    one = One()
    assert one.posted(SPENT, news) == links.WRONG and one.heard == []
    sound: list[News] = [
        Sent(1, "u0", "m", Asked(prompt=Prompt(1.0, 2**62, (1,), 4.0))),
        Ended(1, "answered", False, -1, 0.0, 1.0),
    ]
    assert one.posted(*sound) == links.TAKEN and one.heard == sound
