"""A connection to PostgreSQL that reconnects when it is lost."""

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
"""Connection timeout per server in seconds, which leaves time for the next one."""

FILES = frozenset({"sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile"})
"""URL parameters that name files."""

_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # it is shutting down or starting
    asyncpg.TooManyConnectionsError,
    asyncpg.TransactionRollbackError,  # it conflicted with another transaction
    asyncpg.LockNotAvailableError,
    asyncpg.ReadOnlySQLTransactionError,  # a read-only replica: the next connection may reach the primary
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
_SETTLE = """
SELECT set_config('default_transaction_isolation', 'read committed', false),
CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END
"""
"""Session settings, whatever the database's defaults are."""


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
                self._hang_up()  # a statement may still be under way
                reason = why(TimeoutError() if limit.expired() else error)
                raise StoreAway(f"`{self.name}` does not answer: {reason}", hint="Poise retries") from error
            except (asyncpg.PostgresError, ValueError) as error:
                raise _unusable(self._url, self.name, error) from error

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            loop().call_soon_threadsafe(self._hang_up)

    async def _connected(self) -> Any:
        """Connect to the server that answered last, or to the next one that does."""
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
        """Hang up at a deadline: a cancelled transaction waits for its rollback, without a limit if the connection is
        silent.
        """
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
    """Return one URL for each server in a URL. With several servers, the library would wait for a silent one until no
    time is left for the others.
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
    """Return a command to type: without anything secret, but with the server and the user."""
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
