"""A connection to PostgreSQL that is made again where it was lost."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from poise.drivers.led.link import WITHIN, Answer, Link, check_whole, is_unclear, loop, why
from poise.errors import Fault, PoiseError, StoreAway, StoreFull, extra

try:
    import asyncpg
except ModuleNotFoundError:
    raise Fault("a log in PostgreSQL needs a library", code="E213", hint=extra("postgres")) from None

CONNECTING = 2.0
"""Seconds that one server may take, so that there is time for the next one."""

FILES = frozenset({"sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile"})
"""What a URL may name of them."""

_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # it is being shut down, or starts
    asyncpg.TooManyConnectionsError,
    asyncpg.TransactionRollbackError,  # it was in somebody's way
    asyncpg.LockNotAvailableError,
    asyncpg.ReadOnlySQLTransactionError,  # a copy that only reads: the one that writes may be reached next time
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
_SETTLE = """
SELECT set_config('default_transaction_isolation', 'read committed', false),
CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END
"""
"""Whatever the database does for others."""


class PostgresLink(Link[Any]):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._url = url
        check_whole(file for name, file in parse_qsl(urlsplit(url).query) if name in FILES)
        self._places = deque(places_of(url))
        self._connection: Any = None
        self._one_at_a_time = asyncio.Lock()

    async def answer(self, question: Callable[[Any], Awaitable[Answer]], within: float = WITHIN) -> Answer:
        async with self._one_at_a_time:
            until = asyncio.get_running_loop().time() + within
            limit = asyncio.timeout_at(until)
            try:
                async with limit:
                    if self._connection is None or self._connection.is_closed():
                        self._connection = await self._connected()
                        await self._connection.execute(_SETTLE)
                    with self._given_up_at(until):
                        return await question(self._connection)
            except _AWAY as error:
                self._hang_up()  # it may be in the middle of something
                reason = why(TimeoutError() if limit.expired() else error)
                raise StoreAway(f"`{self.name}` does not answer: {reason}", hint="Poise retries") from error
            except (asyncpg.PostgresError, ValueError) as error:
                raise _unusable(self._url, self.name, error) from error

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            loop().call_soon_threadsafe(self._hang_up)

    async def _connected(self) -> Any:
        """To the server that answered last, or to the next one that does."""
        failure: Exception = TimeoutError()
        for _ in range(len(self._places)):
            try:
                return await asyncpg.connect(self._places[0], timeout=CONNECTING)
            except _AWAY as error:
                failure = error
                self._places.rotate(-1)
        raise failure

    @contextlib.contextmanager
    def _given_up_at(self, moment: float) -> Iterator[None]:
        """A transaction that is cancelled waits for its rollback, without a limit where the connection is silent."""
        late = asyncio.get_running_loop().call_at(moment, self._hang_up)
        try:
            yield
        finally:
            late.cancel()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


def places_of(url: str) -> list[str]:
    """A URL for each of the servers that one names. Given all of them, the library would wait for one that is silent
    until there is no time left for the others.
    """
    parts = urlsplit(url)
    login, at, servers = parts.netloc.rpartition("@")
    if "," not in servers:
        return [url]
    return [parts._replace(netloc=login + at + server).geturl() for server in servers.split(",")]


def _unusable(url: str, name: str, error: Exception) -> PoiseError:
    if isinstance(error, asyncpg.InsufficientResourcesError):  # no disk, no memory
        return StoreFull(f"`{name}` cannot be written: {error}", hint="its administrator sees why; Poise retries")
    return Fault(f"`{name}` cannot be used: {error}", code="E213", hint=_remedy(url, error))


def _remedy(url: str, error: Exception) -> str:
    """What to type: without what may be a secret, but with all that says where and as whom."""
    parts = urlsplit(url)
    if is_unclear(parts):
        return "`psql`, with the same URL"
    places = [(name, text) for name, text in parse_qsl(parts.query) if name in ("host", "port", "user")]
    login, at, servers = parts.netloc.rpartition("@")
    there = parts._replace(netloc=login.partition(":")[0] + at + servers, query=urlencode(places), fragment="")
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        maintenance = there._replace(path="/postgres").geturl()
        return f"`createdb --maintenance-db='{maintenance}' {parts.path.strip('/')}`"
    return f"`psql '{there.geturl()}'`"
