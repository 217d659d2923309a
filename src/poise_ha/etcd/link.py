"""Connection to an etcd cluster: queries one member, and the next one if it does not answer."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import msgspec

from poise.config import parse_place
from poise.drivers.led.link import WITHIN, Answer, Link, check_whole, loop, why
from poise.errors import Fault, InputError, StoreAway, StoreFull, extra
from poise_ha.etcd import words
from poise_ha.etcd.words import Compare, KeyValue, Operation, Question, Range, Refusal, Told, Transaction

try:
    import aiohttp
except ModuleNotFoundError:
    raise Fault("a log in etcd needs a library", code="E213", hint=extra("etcd")) from None

PREFIX = "poise"

PATIENCE = 1.0
"""Seconds of silence after which the next member is tried. The first request may still be carried out."""

_PASSING = frozenset({1, 2, 4, 8, 10, 14})
"""gRPC codes of failures that may not occur at the next member, or soon pass: cancelled, deadline exceeded, resource
exhausted, aborted, unavailable, and 2 (unknown), with which etcd reports a request that it dropped because its members
had no leader.
"""

_UNKNOWN_TOKEN = 16
_ABOUT_TOKENS = ("user name is empty", "revision of auth store is old", "invalid auth token")
_NO_ROOM = "space exceeded"


class Place(NamedTuple):
    """A parsed URL: etcd[s]://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…][/PREFIX][?ca=FILE][&cert=FILE&key=FILE]."""

    members: tuple[str, ...]
    prefix: str
    user: str
    password: str
    tls: ssl.SSLContext | None


def place_of(url: str) -> Place:
    """Parse a URL. Raises `InputError`."""
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    scheme = "https" if parts.scheme == "etcds" else "http"
    members = tuple(f"{scheme}://{host}" for host in hosts.split(","))
    try:
        whole = all(all(parse_place(host, "--store")) for host in hosts.split(","))
    except InputError:
        whole = False
    if not whole or parts.fragment:
        raise InputError(
            "this address has no host of etcd",
            field="--store",
            need="etcd://HOST:PORT[,HOST:PORT…][/PREFIX]",
            have=hosts,
        )
    prefix = unquote(parts.path).strip("/") or PREFIX
    return Place(members, prefix, unquote(user), unquote(password), _tls(parts))


def _tls(parts: SplitResult) -> ssl.SSLContext | None:
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    known = {"ca", "cert", "key"} if parts.scheme == "etcds" else set()
    if unknown := sorted(options.keys() - known):
        need = "ca, cert, key, each a file, behind etcds://"
        raise InputError("this is not an address of etcd", field="--store", need=need, have=", ".join(unknown))
    if parts.scheme != "etcds":
        return None
    check_whole(options.values())
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        if "cert" in options:
            context.load_cert_chain(options["cert"], options.get("key"))
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"these certificates cannot be used: {error}", field="--store") from None
    return context


class EtcdLink(Link["Members"]):
    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        super().__init__(url)
        self.place = place_of(url)
        self._members = Members(self.name, self.place, patience)

    async def answer(self, question: Callable[["Members"], Awaitable[Answer]], within: float = WITHIN) -> Answer:
        try:
            async with asyncio.timeout(within):
                return await question(self._members)
        except TimeoutError as error:
            raise _away(self.name, error) from error

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(self._members.close(), loop())


class Members:
    """The members of a cluster. Used only on the event loop of all links."""

    def __init__(self, name: str, place: Place, patience: float) -> None:
        self.name = name
        self._place = place
        self._patience = aiohttp.ClientTimeout(total=None, sock_connect=patience, sock_read=patience)
        self._session: aiohttp.ClientSession | None = None
        self._first = 0
        self._token = ""
        self._cluster = ""

    async def range(self, key: bytes, end: bytes = b"", *, limit: int = 0, keys_only: bool = False) -> list[KeyValue]:
        """Return the entries from `key` up to and excluding `end`, or only that of `key`."""
        return (await self.ask("kv/range", Range(key, end, limit, keys_only))).kvs

    async def value(self, key: bytes) -> bytes:
        """Return the value of a key; empty if there is none."""
        found = await self.range(key)
        return found[0].value if found else b""

    async def commit(self, compare: list[Compare], operations: list[Operation]) -> bool:
        """Apply all operations if all comparisons hold. A retry at another member may apply them twice, or find that
        the comparisons no longer hold; the caller must be able to detect this.
        """
        return (await self.ask("kv/txn", Transaction(compare, operations))).succeeded

    async def ask(self, what: str, question: Question) -> Told:
        """Try each member once. Raises `StoreAway`, `StoreFull`, or an error that an operator must resolve."""
        body, members = words.encode(question), self._place.members
        failure: Exception = TimeoutError()
        for _ in members:
            at = self._first
            try:
                return await self._ask_one(members[at], what, body)
            except (OSError, aiohttp.ClientError, StoreAway) as error:
                failure = error
                if self._first == at:  # no other request has moved to the next one meanwhile
                    self._first = (at + 1) % len(members)
        raise _away(self.name, failure) from failure

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _ask_one(self, member: str, what: str, body: bytes) -> Told:
        for known in (bool(self._token), False):
            if self._place.user and not known:
                login = {"name": self._place.user, "password": self._place.password}
                self._token = (await self._told(member, "auth/authenticate", words.encode(login))).token
            try:
                return await self._told(member, what, body)
            except _TokenIsOld:
                self._token = ""
        raise Fault(f"`{self.name}` requires a user", code="E213", hint="etcd://USER:PASSWORD@…")

    async def _told(self, member: str, what: str, body: bytes) -> Told:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._place.tls or True)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._patience)
        headers = {"Authorization": self._token} if self._token else {}
        async with self._session.post(f"{member}/v3/{what}", data=body, headers=headers) as response:
            status, text = response.status, await response.read()
        if status != 200:
            raise self._refused(status, text)
        try:
            told = words.decode_answer(text)
        except msgspec.MsgspecError:
            raise Fault(f"`{member}` does not answer like etcd", code="E213") from None
        self._cluster = self._cluster or told.header.cluster_id
        if told.header.cluster_id != self._cluster:
            hint = "name the members of one cluster: what is in another one is another log"
            raise Fault(f"`{member}` belongs to another cluster of etcd", code="E213", hint=hint)
        return told

    def _refused(self, status: int, text: bytes) -> Exception:
        try:
            refusal = words.decode_refusal(text)
        except msgspec.MsgspecError:  # the answer comes from a proxy, or not from etcd's gateway
            refusal = Refusal(message=f"HTTP {status}", code=14 if status >= 500 else 0)
        message = refusal.message or refusal.error
        if refusal.code == _UNKNOWN_TOKEN or any(one in message for one in _ABOUT_TOKENS):
            return _TokenIsOld(message)
        if _NO_ROOM in message:
            return StoreFull(
                f"`{self.name}` cannot be written: {message}",
                hint="compact it, `etcdctl defrag` each member, then `etcdctl alarm disarm`; Poise retries",
            )
        if refusal.code in _PASSING:
            return StoreAway(message)
        return Fault(f"`{self.name}` cannot be used: {message}", code="E213", hint="`etcdctl endpoint status`")


class _TokenIsOld(Exception):
    """The token is missing or expired: members forget tokens."""


def _away(name: str, error: Exception) -> StoreAway:
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        error = error.os_error  # without the library's wording
    return StoreAway(f"`{name}` does not answer: {why(error)}", hint="Poise retries")
