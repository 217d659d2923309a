"""Redis client of the gateways: values that expire, errands (locks), and numbers that only increase.

Concurrent commands are pipelined over a few connections: one call of the library costs as much as thirty commands. All
methods have a timeout and raise `Away` on any failure; replies are checked for their type.
"""

import asyncio
import contextlib
import time
from collections import deque
from typing import Any, Literal, NamedTuple

from poise.errors import InputError, extra
from poise.units import MILLISECOND, SECOND

LINES = 4
"""Number of connections, each with one call at a time."""

TOGETHER = 32
"""Maximum requests in one call …"""

TOGETHER_BYTES = 1 << 20
"""… and bytes after which no further one is added."""

DIGITS = 15
"""Maximum digits of a number, as Lua's numbers are doubles."""

Why = Literal["timeout", "connection", "memory", "garbage", "refused", "busy"]

_END = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
"""Script that ends an errand only with its own token, as it may have expired meanwhile (Redis manual, `SET`)."""

_RAISE = """
local told = redis.call('type', KEYS[1]).ok == 'string' and tonumber(redis.call('get', KEYS[1])) or 0
if told >= tonumber(ARGV[1]) and told < 1e15 then return told end
redis.call('set', KEYS[1], ARGV[1])
return tonumber(ARGV[1])
"""

Command = tuple[str | bytes | int, ...]


class Away(Exception):
    """Redis was unreachable, too slow or failed. `garbage`: a value has another type; `busy`: too many commands waited.
    All requests of one failed call get the same exception object.
    """

    def __init__(self, why: Why) -> None:
        super().__init__(why)
        self.why = why


class Kept(NamedTuple):
    """A value and its remaining time to live in nanoseconds."""

    data: bytes
    left: int


class _Asked(NamedTuple):
    commands: tuple[Command, ...]
    told: asyncio.Future[list[Any]]
    by: int
    """Deadline for sending it."""


class Redis:
    """Client of a Redis that may be slow, unreachable, full, or used by other programs too."""

    def __init__(self, url: str, password: str | None, patience: int) -> None:
        """`patience`: timeout in nanoseconds of a call, and of the wait for it. Raises `InputError` if the library is
        not installed.
        """
        try:
            import redis.asyncio as library
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError as error:
            hint = extra("redis")
            raise InputError("a shared cache needs a library", field="cache.redis", need="redis", hint=hint) from error
        given = {"password": password} if password else {}
        self._pool = library.BlockingConnectionPool.from_url(
            url, max_connections=LINES, timeout=None, protocol=2, retry=Retry(NoBackoff(), 0), **given
        )
        self._client: Any = library.Redis(connection_pool=self._pool)
        self._patience = patience
        self._asked: deque[_Asked] = deque()
        self._calling: set[asyncio.Task[None]] = set()

    async def get(self, key: str) -> Kept | None:
        """Return the value, if any."""
        data, left = await self._ask(("GET", key), ("PTTL", key))
        return _kept(data, left)

    async def look(self, key: str, errand: str) -> tuple[Kept | None, int]:
        """Return the value, if any, and the remaining nanoseconds of the errand; 0 if it has ended or never expires."""
        data, left, busy_for = await self._ask(("GET", key), ("PTTL", key), ("PTTL", errand))
        return _kept(data, left), max(0, busy_for) * MILLISECOND

    async def begin(self, key: str, token: str, time: int) -> bool:
        """Try to take the errand for at most `time` nanoseconds. Returns whether this succeeded."""
        (told,) = await self._ask(("SET", key, token, "NX", "PX", max(1, time // MILLISECOND)))
        return told is not None

    async def end(self, key: str, token: str) -> None:
        """End an errand, if this token still holds it."""
        await self._ask(("EVAL", _END, 1, key, token))

    async def put(self, key: str, data: bytes, time: int) -> None:
        """Store a value for `time` nanoseconds, and replace any other."""
        await self._ask(("SET", key, data, "PX", max(1, time // MILLISECOND)))

    async def number(self, key: str, known: int, otherwise: int) -> int:
        """Raise the stored number to at least `known` (-1: none), and return it; if neither exists, store and return
        `otherwise`.
        """
        try:
            (told,) = await self._ask(("GET", key))
        except Away as error:
            if error.why != "garbage":
                raise
            told = None
        found = int(told) if isinstance(told, bytes) and told.isdigit() and len(told) <= DIGITS else -1
        if found >= max(known, 0):
            return found
        (told,) = await self._ask(("EVAL", _RAISE, 1, key, known if known >= 0 else otherwise))
        return int(told)

    async def close(self) -> None:
        """Cancel all calls and close the connections."""
        for call in self._calling:
            call.cancel()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(self._patience / SECOND):
                await self._client.aclose()
                await self._pool.disconnect()

    async def _ask(self, *commands: Command) -> list[Any]:
        """Run commands and return their replies. Raises `Away` if one of them fails."""
        told: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(commands, told, time.monotonic_ns() + self._patience))
        if len(self._calling) < LINES:
            call = asyncio.create_task(self._call())
            self._calling.add(call)
            call.add_done_callback(self._calling.discard)
        return await told

    async def _call(self) -> None:
        """Send queued commands until the queue is empty."""
        while together := self._next():
            try:
                said = await self._say([command for one in together for command in one.commands])
            except BaseException as error:
                away = error if isinstance(error, Away) else Away("connection")
                for one in (*together, *self._asked):  # also fail those queued behind a failed call
                    if not one.told.done():
                        one.told.set_exception(away)
                self._asked.clear()
                if away is not error:  # we are closed
                    raise
                return
            at = 0
            for one in together:
                mine, at = said[at : at + len(one.commands)], at + len(one.commands)
                if one.told.done():
                    continue
                if (wrong := next((it for it in mine if isinstance(it, Exception)), None)) is not None:
                    one.told.set_exception(Away(_why(wrong)))
                else:
                    one.told.set_result(mine)

    def _next(self) -> list[_Asked]:
        together: list[_Asked] = []
        size, now = 0, time.monotonic_ns()
        while self._asked and len(together) < TOGETHER and size < TOGETHER_BYTES:
            one = self._asked.popleft()
            if one.told.done():
                continue
            if one.by < now:
                one.told.set_exception(Away("busy"))
                continue
            together.append(one)
            size += sum(len(part) for command in one.commands for part in command if isinstance(part, bytes))
        return together

    async def _say(self, commands: list[Command]) -> list[Any]:
        """Send commands and return their replies, including errors. Raises `Away` without a complete reply in time."""
        from redis import exceptions

        try:
            async with asyncio.timeout(self._patience / SECOND):
                line = self._client.pipeline(transaction=False)
                for command in commands:
                    line.execute_command(*command)
                return list(await line.execute(raise_on_error=False))
        except (TimeoutError, exceptions.TimeoutError):
            raise Away("timeout") from None
        except (exceptions.ConnectionError, OSError) as error:
            raise Away("connection") from error
        except Exception as error:  # the library may raise anything if the server is no Redis
            raise Away("garbage") from error


def _kept(data: Any, left: Any) -> Kept | None:
    """Ignore a value without expiry, which `Redis.put` did not write."""
    return Kept(data, left * MILLISECOND) if isinstance(data, bytes) and left > 0 else None


def _why(error: Exception) -> Why:
    from redis import exceptions

    if isinstance(error, exceptions.OutOfMemoryError):
        return "memory"
    return "garbage" if str(error).startswith("WRONGTYPE") else "refused"


__all__ = ["Away", "Kept", "Redis"]
