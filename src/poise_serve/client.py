"""HTTP client for upstreams: forwarded headers of requests and answers, and connection failures.

It uses aiohttp. Measured CPU time of a front to forward a small answer, and one of 50 events: aiohttp 0.43 and 0.91 ms,
httpx2 1.87 and 2.85 ms, httpx 3.36 and 5.49 ms.
"""

from collections.abc import Mapping

import aiohttp
from yarl import URL

from poise.config import MAX_BODY
from poise.model.serving_upstreams import Upstream
from poise.units import SECOND
from poise_serve.openai import is_of_messages
from poise_serve.pool import Member

KEPT_SECONDS = 4.0
"""Seconds to keep an idle connection: common model servers (uvicorn, llama.cpp) close theirs after 5 s, and requests on
a connection that is being closed fail."""

READ_BYTES = 64 * 1024
"""Read buffer of an answer; at most twice this is buffered while its client does not read."""

NOT_ASKED_ON = frozenset(
    {
        "host", "connection", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", "expect", "content-length", "cookie", "authorization", "x-api-key",
        "x-request-timeout-seconds", "x-envoy-upstream-rq-timeout-ms", "x-envoy-expected-rq-timeout-ms",
        "x-poise-lane",
    }
)  # fmt: skip
"""Request headers that are not forwarded: those of the connection and of the front. A client's key is for the front."""

NOT_ANSWERED_ON = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"date", b"server"}
)

SKIPPED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that aiohttp must not add to the client's."""

FAILURES = (aiohttp.ClientError, ConnectionError, OSError)
"""Exceptions of a failed upstream or connection, when sending a request or reading an answer."""


NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError)
"""The failures after which the upstream has certainly received nothing. The only timeout is that of connecting."""


class Client:
    """Connection pool for all upstreams."""

    def __init__(self, keys: Mapping[str, str], connecting: int) -> None:
        """`keys`: API keys by the variables that have them. `connecting`: connection timeout in nanoseconds."""
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
        """Send a request; returns after the headers of the answer. `target`: path and query."""
        url = self._url(member.told, target)
        key = self._keys.get(member.told.key_from)
        if key:
            headers = [*headers, ("authorization", f"Bearer {key}")]
            if is_of_messages(target.partition("?")[0]):
                headers.append(("x-api-key", key))
        return await self._session.post(url, data=body, headers=headers, allow_redirects=False)

    async def get(self, told: Upstream, path: str, nanoseconds: int) -> tuple[int, bytes]:
        """Return status and body, for probes; the body ends soon after `MAX_BODY` bytes."""
        key = self._keys.get(told.key_from)
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
    """Return the request headers to forward to an upstream."""
    texts = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    return [(name, value) for name, value in texts if name not in NOT_ASKED_ON]


def answered_on(answer: aiohttp.ClientResponse, member: Member) -> list[tuple[bytes, bytes]]:
    """Return the answer headers to forward to the client, with the name of the upstream."""
    headers = [(name.lower(), value) for name, value in answer.raw_headers]
    kept = [(name, value) for name, value in headers if name not in NOT_ANSWERED_ON]
    return [*kept, (b"x-poise-upstream", member.name.encode())]


def told_to_wait(answer: aiohttp.ClientResponse) -> float:
    """Return Retry-After in seconds; 0 if it is missing or a date, which common model servers do not send."""
    try:
        return max(0.0, float(answer.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
