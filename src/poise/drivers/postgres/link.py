"""A connection to PostgreSQL that is made again where it was lost, asked from any thread.

The library speaks asyncio; owner and writer of a log wait. So its loop has a thread of its own, one for all links.
"""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from poise.errors import Fault, PoiseError, StoreAway, StoreFull

try:
    import asyncpg
except ModuleNotFoundError:
    raise Fault("a log in PostgreSQL needs a library", code="E213", hint="pip install 'poise[postgres]'") from None

WITHIN = 5.0
"""Seconds that a question may take, connecting included; then the connection is taken for lost."""

CONNECTING = 2.0

Answer = TypeVar("Answer")

_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # it is being shut down, or starts
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,  # a copy that only reads: the one that writes may be reached next time
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
_SETTLE = """
SELECT set_config('default_transaction_isolation', 'read committed', false),
CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END
"""
"""Whatever the database does for others."""


class Link:
    def __init__(self, url: str) -> None:
        self.name = name_of(url)
        self._url = url
        self._connection: Any = None
        self._one_at_a_time = asyncio.Lock()

    def ask(self, question: Callable[[Any], Awaitable[Answer]], within: float = WITHIN) -> Answer:
        """What the question makes of the connection. Raises `StoreAway`, or what a person has to see to."""
        return asyncio.run_coroutine_threadsafe(self.answer(question, within), loop()).result()

    async def answer(self, question: Callable[[Any], Awaitable[Answer]], within: float = WITHIN) -> Answer:
        """The same, on the loop."""
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(within):
                    if self._connection is None or self._connection.is_closed():
                        self._connection = await asyncpg.connect(self._url, timeout=CONNECTING)
                        await self._connection.execute(_SETTLE)
                    return await question(self._connection)
            except _AWAY as error:
                self._hang_up()  # it may be in the middle of something
                raise StoreAway(f"`{self.name}` does not answer: {_why(error)}", hint="it is tried again") from error
            except (asyncpg.PostgresError, ValueError) as error:
                raise _unusable(self.name, error) from error

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            loop().call_soon_threadsafe(self._hang_up)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


def name_of(url: str) -> str:
    """The URL without its secrets, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@functools.cache
def loop() -> asyncio.AbstractEventLoop:
    made = asyncio.new_event_loop()
    threading.Thread(target=made.run_forever, name="poise-database", daemon=True).start()
    return made


def _why(error: BaseException) -> str:
    return "it takes too long" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def _unusable(name: str, error: Exception) -> PoiseError:
    if isinstance(error, asyncpg.InsufficientResourcesError):  # no disk, no memory
        return StoreFull(f"`{name}` cannot be written: {error}", hint="its administrator sees why; it is tried again")
    return Fault(f"`{name}` cannot be used: {error}", code="E213", hint=f"`psql {name}`")
