"""News for gateways on other machines, over HTTP: batches to the path `PEERS` of each named address.

Each batch is signed with the key that all gateways share (HMAC-SHA256), so it needs no TLS to be authentic. A copy of
an earlier batch is refused: its serial number is known, or it was made before this gateway started. One request at a
time is sent to an address, so news arrive in order. If it fails, or a new gateway is heard, the next batch begins with
everything that this gateway has in flight and knows of upstreams: no loss lasts. Several gateways may listen at one
address: whichever gets a batch passes it on to the others there.

All gateways may have the same list of addresses: a gateway that finds itself in it sends nothing there.
"""

import asyncio
import contextlib
import hmac
import time
from collections.abc import Callable, Iterable, Sequence

import aiohttp
import msgspec

from poise.decoding import msgpack_decoder
from poise_serve.model.news import Batch, News

PEERS = "/peers"
SIGNATURE = "x-poise-signature"

BATCH_EVERY = 0.02
"""Minimum seconds between two batches to one address …"""

RETRY_EVERY = 1.0
"""… and after one that failed."""

TIMEOUT = 2.0
"""Seconds for a batch."""

CLOCKS_DIFFER = 60.0
"""Maximum seconds between the clocks of two machines. An older batch is refused."""

MOST_WAITING = 20_000
"""Maximum number of news that wait for an address. Beyond it they are dropped, and a complete batch follows."""

MAX_BATCH = 16 << 20
"""Maximum bytes of a batch."""

MOST_GATEWAYS = 4096
"""Maximum number of gateways whose serial numbers are remembered."""

TAKEN, WRONG, SELF = 204, 403, 409
"""Status codes of an answer to a batch: it was taken, it is not authentic, or it is from this address."""

_encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[Batch] = msgpack_decoder(Batch)


class Links:
    """The links of one gateway. `state` returns the complete report for a new gateway. `take` is called with the news
    of another gateway: its number, the news, and the serial number of their batch.
    """

    def __init__(
        self,
        group: str,
        gateway: int,
        state: Callable[[], Iterable[News]],
        take: Callable[[int, Sequence[News], int], None],
        say: Callable[[str], None],
    ) -> None:
        self._group, self._gateway = group, gateway
        self._state, self._take, self._say = state, take, say
        self._since = time.time()
        self._urls: tuple[str, ...] = ()
        self._key = b""
        self._links: dict[str, _Link] = {}
        self._serials: dict[int, int] = {}
        self._session: aiohttp.ClientSession | None = None

    @property
    def is_open(self) -> bool:
        """Whether other machines may have gateways before the same upstreams."""
        return bool(self._key)

    def become(self, urls: Sequence[str], key: str) -> None:
        """Use these addresses from now on, with this key."""
        if (tuple(urls), key.encode()) == (self._urls, self._key):
            return
        self._urls, self._key = tuple(urls), key.encode()
        if self._session is not None:
            self._open(self._session)

    def start(self) -> None:
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=TIMEOUT)
        )
        self._open(self._session)

    async def stop(self) -> None:
        for link in self._links.values():
            await link.stop()
        self._links.clear()
        if self._session is not None:
            await self._session.close()

    def tell(self, news: News) -> None:
        for link in self._links.values():
            link.tell(news)

    def receive(self, body: bytes, signature: str) -> int:
        """Take a batch of another gateway. Returns the status code of the answer."""
        if not self._key or not hmac.compare_digest(_signed(self._key, body), signature.encode("latin-1", "replace")):
            return WRONG
        try:
            batch = _decode.decode(body)
        except msgspec.DecodeError:  # of another version of Poise, or with a number that cannot be
            return WRONG
        if batch.group == self._group:
            return SELF
        now = time.time()
        is_recent = max(self._since, now - CLOCKS_DIFFER) <= batch.at <= now + CLOCKS_DIFFER
        if not is_recent or batch.serial <= self._serials.get(batch.gateway, 0):
            return WRONG
        self.know(batch.gateway, batch.serial)
        self._take(batch.gateway, batch.news, batch.serial)
        return TAKEN

    def know(self, gateway: int, serial: int) -> None:
        """Note a batch that was taken here, or by another gateway of this machine."""
        known = self._serials.pop(gateway, None)
        if known is None:
            for link in self._links.values():
                link.renew()
        if len(self._serials) >= MOST_GATEWAYS:
            del self._serials[next(iter(self._serials))]
        self._serials[gateway] = max(serial, known or 0)

    def _open(self, session: aiohttp.ClientSession) -> None:
        for link in self._links.values():
            link.end()
        self._links = {url: _Link(url, session, self._made, self._state, self._say) for url in self._urls}

    def _made(self, serial: int, news: list[News]) -> tuple[bytes, str]:
        """Return the body of a batch and its signature."""
        body = _encode(Batch(self._group, self._gateway, serial, time.time(), news))
        return body, _signed(self._key, body).decode()


class _Link:
    """The news for one address."""

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        made: Callable[[int, list[News]], tuple[bytes, str]],
        state: Callable[[], Iterable[News]],
        say: Callable[[str], None],
    ) -> None:
        self._url, self._session, self._made, self._state, self._say = url, session, made, state, say
        self._waiting: list[News] = []
        self._is_new = True  # the next batch is a complete one
        self._is_up: bool | None = None
        self._some = asyncio.Event()
        self._some.set()
        self._sending = asyncio.create_task(self._send())

    def tell(self, news: News) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self.renew()
        elif not self._is_new:
            self._waiting.append(news)
        self._some.set()

    def renew(self) -> None:
        """Begin the next batch with everything."""
        self._is_new = True
        self._waiting.clear()
        self._some.set()

    def end(self) -> None:
        self._sending.cancel()

    async def stop(self) -> None:
        self.end()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sending

    async def _send(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            news, self._waiting = list(self._state()) if self._is_new else self._waiting, []
            self._is_new = False
            status, why = await self._post(news)
            if status == SELF:
                return
            self._tell_whether_up(status == TAKEN, why)
            if status == TAKEN:
                await asyncio.sleep(BATCH_EVERY)
            else:
                self.renew()
                await asyncio.sleep(RETRY_EVERY)

    async def _post(self, news: list[News]) -> tuple[int, str]:
        """Send a batch. Returns the status code, 0 without an answer, and the error."""
        body, signature = self._made(time.monotonic_ns(), news)
        try:
            async with self._session.post(
                self._url + PEERS, data=body, headers={SIGNATURE: signature}, allow_redirects=False
            ) as answer:
                return answer.status, f"HTTP {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return 0, str(error) or type(error).__name__

    def _tell_whether_up(self, is_up: bool, why: str) -> None:
        if is_up != self._is_up:
            if not is_up:
                self._say(f"this gateway cannot report to the gateways at {self._url}: {why}")
            elif self._is_up is not None:
                self._say(f"this gateway reports to the gateways at {self._url} again")
            self._is_up = is_up


def _signed(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, body, "sha256").hex().encode()


__all__ = ["MAX_BATCH", "PEERS", "SIGNATURE", "Links"]
