"""HTTP client for upstreams: forwarded headers of requests and answers, and connection failures.

Connections, and the reading of answers, are aiohttp's: its connector and its parser. Its session is not used: it builds
objects for features that a front does not have (cookies, redirects, proxies, middlewares), which took two thirds of the
client's CPU time for a small request.
"""

import asyncio
import re
from collections.abc import Mapping
from errno import ECONNRESET
from typing import NamedTuple
from weakref import WeakSet

import aiohttp
from aiohttp.http import HttpProcessingError, RawResponseMessage
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

OF_CONNECTION = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authentication-info", b"proxy-authorization",
        b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
"""Headers that end at each connection, besides those that `Connection` names (RFC 9110, 7.6.1)."""

NOT_ASKED_ON = OF_CONNECTION | {
    b"host", b"expect", b"content-length", b"cookie", b"authorization", b"x-api-key",
    b"x-request-timeout-seconds", b"x-envoy-upstream-rq-timeout-ms", b"x-envoy-expected-rq-timeout-ms",
    b"x-poise-lane",
}  # fmt: skip
"""Request headers that are not forwarded: those of the connection and of the front. A client's key is for the front."""

NOT_ANSWERED_ON = OF_CONNECTION | {b"date", b"server"}

_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search

FAILURES = (aiohttp.ClientError, ConnectionError, OSError)
"""Exceptions of a failed upstream or connection, when sending a request or reading an answer."""


NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError)
"""The failures after which the upstream has certainly received nothing. The only timeout is that of connecting."""


class Response:
    """An answer, of which the headers are here. Its connection is kept once `content` is read to its end."""

    def __init__(
        self, message: RawResponseMessage, content: aiohttp.StreamReader, line: "aiohttp.connector.Connection"
    ) -> None:
        self.status, self.headers, self.raw_headers = message.code, message.headers, message.raw_headers
        self.content = content
        self._line = line
        content.on_eof(line.release)

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def close(self) -> None:
        """Close the connection, unless it is kept."""
        self._line.close()


class _Server(NamedTuple):
    """An upstream's address: a request that names its connections, its Host, and the path before all targets."""

    dialled: aiohttp.ClientRequest
    host: bytes
    path: bytes


class Client:
    """Connection pool for all upstreams."""

    def __init__(self, keys: Mapping[str, str], connecting: int) -> None:
        """`keys`: API keys by the variables that have them. `connecting`: connection timeout in nanoseconds."""
        self._keys = keys
        self._connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_SECONDS)
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connecting / SECOND)
        self._servers: dict[str, _Server] = {}
        self._used: WeakSet[asyncio.BaseProtocol] = WeakSet()
        """Connections that had a request."""

    async def close(self) -> None:
        await self._connector.close()

    async def ask(self, member: Member, target: str, body: bytes, headers: list[tuple[bytes, bytes]]) -> Response:
        """Send a request; returns after the headers of the answer. `target`: path and query."""
        key = self._keys.get(member.told.key_from, "").encode()
        if key:
            headers = [*headers, (b"authorization", b"Bearer " + key)]
            if is_of_messages(target.partition("?")[0]):
                headers.append((b"x-api-key", key))
        headers = [*headers, (b"content-length", b"%d" % len(body))]
        return await self._send(member.told, b"POST", target, headers, body)

    async def get(self, told: Upstream, path: str, nanoseconds: int) -> tuple[int, bytes]:
        """Return status and body, for probes; the body ends soon after `MAX_BODY` bytes."""
        key = self._keys.get(told.key_from, "").encode()
        headers = [(b"authorization", b"Bearer " + key)] if key else []
        async with asyncio.timeout(nanoseconds / SECOND):
            try:
                answer = await self._send(told, b"GET", path, headers, b"")
            except aiohttp.ServerDisconnectedError:  # perhaps it has closed a kept connection
                answer = await self._send(told, b"GET", path, headers, b"")
            try:
                body = b""
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > MAX_BODY:
                        break
                return answer.status, body
            finally:
                answer.close()

    async def _send(
        self,
        told: Upstream,
        method: bytes,
        target: str,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        *,
        may_again: bool = True,
    ) -> Response:
        """Send a request. If a kept connection is reset, `may_again`: the server had closed it, and did not read the
        request. A server that has read it and dies does not reset the connection.
        """
        server = self._server(told.url)
        try:
            line = await self._connector.connect(server.dialled, traces=[], timeout=self._timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"no connection to {told.url} in time") from error
        try:
            protocol, transport = line.protocol, line.transport
            if protocol is None or transport is None:
                raise aiohttp.ServerDisconnectedError
            is_kept = protocol in self._used
            self._used.add(protocol)
            protocol.set_response_params(read_until_eof=True, auto_decompress=False, read_bufsize=READ_BYTES)
            lines = [b"%b %b%b HTTP/1.1\r\nhost: %b\r\n" % (method, server.path, target.encode(), server.host)]
            lines += [b"%b: %b\r\n" % header for header in headers]
            transport.writelines([b"".join(lines), b"\r\n", body])
            try:
                message, content = await protocol.read()
            except aiohttp.ClientOSError as error:
                if error.errno != ECONNRESET or not (is_kept and may_again):
                    raise
                line.close()
                return await self._send(told, method, target, headers, body, may_again=False)
            while 100 <= message.code < 200:  # 100 Continue, or 103 Early Hints
                message, content = await protocol.read()
        except HttpProcessingError as error:
            line.close()
            raise aiohttp.ClientPayloadError(f"the answer cannot be read: {error.message}") from error
        except BaseException:
            line.close()
            raise
        return Response(message, content, line)

    def _server(self, url: str) -> _Server:
        found = self._servers.get(url)
        if found is None:
            parsed = URL(url)
            host = parsed.raw_authority.rpartition("@")[2].encode()
            dialled = aiohttp.ClientRequest("GET", parsed, loop=asyncio.get_running_loop())
            found = self._servers[url] = _Server(dialled, host, parsed.raw_path.rstrip("/").encode())
        return found


def asked_on(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the request headers to forward to an upstream."""
    dropped = NOT_ASKED_ON | _named(headers)
    return [(name, value) for name, value in headers if name not in dropped]


def answered_on(answer: Response, member: Member) -> list[tuple[bytes, bytes]]:
    """Return the answer headers to forward to the client, with the name of the upstream. Headers with control
    characters are left out: they cannot be sent.
    """
    headers = [(name.lower(), value) for name, value in answer.raw_headers]
    dropped = NOT_ANSWERED_ON | _named(headers)
    kept = [(name, value) for name, value in headers if name not in dropped and not _CONTROL(value)]
    return [*kept, (b"x-poise-upstream", member.name.encode())]


def _named(headers: list[tuple[bytes, bytes]]) -> set[bytes]:
    """Return the headers that `Connection` names, in lower case."""
    return {one.strip().lower() for name, value in headers if name == b"connection" for one in value.split(b",")}


def told_to_wait(answer: Response) -> float:
    """Return Retry-After in seconds; 0 if it is missing or a date, which common model servers do not send."""
    try:
        return max(0.0, float(answer.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
