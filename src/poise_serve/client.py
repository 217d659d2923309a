"""Requests to upstreams: what is passed on of a request and of its answer, and what can go wrong on the way.

The client is aiohttp's. Measured before it was chosen, CPU of a front that passes a small answer on, and one of 50
events: aiohttp 0.43 and 0.91 ms, httpx2 1.87 and 2.85 ms, httpx 3.36 and 5.49 ms.
"""

from collections.abc import Mapping

import aiohttp
from yarl import URL

from poise.config import MAX_BODY
from poise.model.serving_upstreams import Upstream
from poise.units import SECOND
from poise_serve.pool import Member

KEPT_SECONDS = 4.0
"""An idle connection is kept for so long: servers of this field (uvicorn's, llama.cpp's) close theirs after 5 s, and a
request that meets a connection just being closed fails."""

READ_BYTES = 64 * 1024
"""Of an answer are buffered, twice this at most, while its client does not take them."""

NOT_ASKED_ON = frozenset(
    {
        "host", "connection", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", "expect", "content-length", "cookie", "authorization",
        "x-request-timeout-seconds", "x-envoy-upstream-rq-timeout-ms", "x-envoy-expected-rq-timeout-ms",
        "x-poise-lane",
    }
)  # fmt: skip
"""Headers that are the connection's own, or the front's: a client's key is for it, and not for what is behind."""

NOT_ANSWERED_ON = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"date", b"server"}
)

SKIPPED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""aiohttp adds none of its own to what the client sent."""

FAILURES = (aiohttp.ClientError, ConnectionError, OSError)
"""What asking, and reading an answer, raise when the upstream or the way to it failed."""


NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError)
"""Those of them after which it is certain that the upstream had nothing of the request. Only connecting is timed."""


class Client:
    """Connections to all upstreams, kept and used again."""

    def __init__(self, keys: Mapping[str, str], connecting: int) -> None:
        """`keys`: of upstreams that want one, by name. Connecting takes so many nanoseconds at most."""
        self._keys = keys
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connecting / SECOND),
            auto_decompress=False,
            read_bufsize=READ_BYTES,
            skip_auto_headers=SKIPPED,
        )
        self._urls: dict[tuple[str, str], URL] = {}

    async def close(self) -> None:
        await self._session.close()

    async def ask(
        self, member: Member, target: str, body: bytes, headers: list[tuple[str, str]]
    ) -> aiohttp.ClientResponse:
        """The answer, as far as its headers. `target` is a path, perhaps with a query."""
        url = self._url(member.told, target)
        key = self._keys.get(member.name)
        if key:
            headers = [*headers, ("authorization", f"Bearer {key}")]
        return await self._session.post(url, data=body, headers=headers, allow_redirects=False)

    async def get(self, told: Upstream, path: str, nanoseconds: int) -> tuple[int, bytes]:
        """Status and body, for probes; of the body no more than `MAX_BODY`."""
        key = self._keys.get(told.name)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        timeout = aiohttp.ClientTimeout(total=nanoseconds / SECOND)
        async with self._session.get(
            self._url(told, path), headers=headers, timeout=timeout, allow_redirects=False
        ) as answer:
            body = b""
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY:
                    break
            return answer.status, body

    def _url(self, told: Upstream, target: str) -> URL:
        if "?" in target:
            return URL(told.url + target, encoded=True)
        found = self._urls.get((told.url, target))
        if found is None:
            found = self._urls[told.url, target] = URL(told.url + target, encoded=True)
        return found


def asked_on(headers: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """The headers of a request that an upstream is sent."""
    texts = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    return [(name, value) for name, value in texts if name not in NOT_ASKED_ON]


def answered_on(answer: aiohttp.ClientResponse, member: Member) -> list[tuple[bytes, bytes]]:
    """The headers of an answer that the client is sent, and which upstream it came from."""
    headers = [(name.lower(), value) for name, value in answer.raw_headers]
    kept = [(name, value) for name, value in headers if name not in NOT_ANSWERED_ON]
    return [*kept, (b"x-poise-upstream", member.name.encode())]


def told_to_wait(answer: aiohttp.ClientResponse) -> float:
    """Seconds of its Retry-After; 0 where there is none, or a date (no server of this field sends one)."""
    try:
        return max(0.0, float(answer.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
