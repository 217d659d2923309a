"""Cached answers that gateways share in Redis, under `poise:SERVICE:VERSION.GENERATION:HASH`.

A *generation* is a number that only increases: clearing the cache increments it, and entries of lower generations are
not read any more. Every gateway polls it each second, and clears its own cache when it has increased; a gateway that
knows a higher number than Redis (after a restart or an outage of Redis) writes it back.

A gateway that finds no entry takes an *errand*, a lock with about the duration of an answer. The others poll for the
answer until the lock ends, and then ask the model themselves, so a gateway that dies delays nobody for longer.

A slow or unreachable Redis costs a request about `PATIENCE`, a few times; then it is not used until a poll succeeds.
Its data is verified: an answer has a hash of itself and of its key.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from poise.decoding import msgpack_decoder
from poise.errors import SpecError
from poise.model.servicefile import DeclaredService
from poise.model.serving_upstreams import Ejection
from poise.units import MILLISECOND, SECOND
from poise_serve.kernel.resilience import Breaker
from poise_serve.redis import Away, Kept
from poise_serve.service_metrics import CacheMetrics
from poise_serve.wire import Answer

PATIENCE = 50 * MILLISECOND
"""Timeout of one call to Redis."""

EJECTION = Ejection(failures=3, pause=SECOND, longest=8 * SECOND, slower=0.0, least=0)
"""When to stop using Redis; it is used again within ten seconds of its recovery."""

SPEAKS_OF_ALL = ("timeout", "connection", "refused")
"""Failures of Redis as a whole, and not of one key, of writing, or of this gateway."""

LOOK_EVERY = 1.0
"""Polling interval of the generation, in seconds."""

LARGEST = 1 << 20
"""Maximum bytes of a shared answer; a larger one would delay the others."""

MOST_WRITES = 64
"""Maximum answers being written to Redis; further ones are not shared."""

WORTH = 5 * MILLISECOND
"""No errand for faster answers: taking the lock and polling costs about as much."""

LONGEST_ERRAND = SECOND
PAUSES = (5 * MILLISECOND, 50 * MILLISECOND)
"""Initial and maximum polling interval for an answer while another gateway has the errand."""

SEAL = 16
"""Length in bytes of the hash before an answer."""


class Store(Protocol):
    """Interface of `poise_serve.redis`. All methods raise `Away`."""

    async def get(self, key: str) -> Kept | None: ...
    async def look(self, key: str, errand: str) -> tuple[Kept | None, int]: ...
    async def begin(self, key: str, token: str, time: int) -> bool: ...
    async def end(self, key: str, token: str) -> None: ...
    async def put(self, key: str, data: bytes, time: int) -> None: ...
    async def number(self, key: str, known: int, otherwise: int) -> int: ...
    async def close(self) -> None: ...


class Found(NamedTuple):
    """Result of a lookup: an answer and its age in nanoseconds; or none, and this gateway's errand token if it has
    one.
    """

    answer: Answer | None = None
    age: int = 0
    errand: str = ""


class SharedAnswers:
    """The shared cache of one service's gateways."""

    def __init__(self, store: Store, name: str, version: str, ttl: int, metrics: CacheMetrics) -> None:
        self._store = store
        self._name = f"poise:{name}:{version}"
        self._ttl = ttl
        self._metrics = metrics
        self._breaker = Breaker(EJECTION)
        self._latest: Away | None = None
        self._generation = -1
        self._writes: set[asyncio.Task[None]] = set()
        self._keeping: asyncio.Task[None] | None = None
        self.on_forgotten: Callable[[], None] = lambda: None
        """Called when another gateway has cleared the cache."""

    async def start(self) -> None:
        """Start polling; returns after the first poll, with or without success."""
        await self._look()
        self._keeping = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        if self._writes:
            await asyncio.wait(self._writes, timeout=2 * PATIENCE / SECOND)
        await self._store.close()

    @property
    def is_there(self) -> bool:
        """Whether Redis is in use now."""
        return self._generation >= 0 and not self._breaker.is_ejected

    def key(self, question: bytes) -> str:
        """Return the Redis key of a request, given the hash of its tenant and body."""
        return f"{self._name}.{self._generation}:{question.hex()}"

    async def find(self, key: str, takes: int, alone: bool = False) -> Found:
        """Look up an answer; returns an empty result as soon as the model must be asked. `takes`: recent answer time in
        nanoseconds, 0 if unknown. `alone`: do not wait for another gateway's errand.
        """
        try:
            return await self._find(key, takes, alone)
        except Away as error:
            self._failed(error)
            return Found()

    async def _find(self, key: str, takes: int, alone: bool) -> Found:
        found = self._opened(key, await self._store.get(key))
        self._well()
        self._metrics.looked_up("redis", hit=found is not None)
        if found is not None or alone or 0 < takes < WORTH:
            return found or Found()
        token, errand = secrets.token_hex(8), f"{key}:errand"
        time_of_it = min(2 * takes, LONGEST_ERRAND) if takes else LONGEST_ERRAND
        if await self._store.begin(errand, token, time_of_it):
            return Found(errand=token)
        until, pause = _now() + time_of_it, PAUSES[0]
        while (now := _now()) < until:
            await asyncio.sleep(min(pause, until - now) / SECOND)
            kept, busy_for = await self._store.look(key, errand)
            found = self._opened(key, kept)
            if found is not None:
                self._metrics.collapsed("redis")
                return found
            if not busy_for:
                break
            pause = min(2 * pause, PAUSES[1])
        return Found()

    def keep(self, key: str, answer: Answer | None, errand: str) -> None:
        """Store an answer, if any, and release the errand, in the background."""
        if answer is not None and len(answer.body) > LARGEST:
            answer = None
        if not self.is_there or not (answer or errand):
            return
        if len(self._writes) >= MOST_WRITES:
            self._metrics.failed("redis", "busy")
            return
        task = asyncio.create_task(self._write(key, answer, errand))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(self, key: str, answer: Answer | None, errand: str) -> None:
        try:
            if answer is not None:
                await self._store.put(key, sealed(key, answer), self._ttl)
                self._metrics.kept("redis")
            if errand:
                await self._store.end(f"{key}:errand", errand)
        except Away as error:
            self._failed(error)
        else:
            self._well()

    async def forget(self) -> bool:
        """Clear the cache on all gateways. Returns whether Redis was reachable; otherwise they clear it after its
        recovery, as does a gateway that is cut off.
        """
        self._generation = max(self._generation + 1, time.time_ns() // MILLISECOND)
        return await self._look()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if self._breaker.is_open_to(_now()):
                self._breaker.on_sent()
                await self._look()

    async def _look(self) -> bool:
        known = self._generation
        try:
            told = await self._store.number(f"{self._name}:generation", known, time.time_ns() // MILLISECOND)
        except Away as error:
            self._failed(error)
            self._breaker.on_neither()
            return False
        self._well()
        if told > self._generation:
            self._generation = told
            if known >= 0:
                self.on_forgotten()
        return True

    def _opened(self, key: str, kept: Kept | None) -> Found | None:
        if kept is None:
            return None
        answer = opened(key, kept.data)
        if answer is None:
            self._metrics.failed("redis", "garbage")
            return None
        return Found(answer, max(0, self._ttl - kept.left))

    def _well(self) -> None:
        self._breaker.on_success(_now())

    def _failed(self, error: Away) -> None:
        self._metrics.failed("redis", error.why)
        if error.why in SPEAKS_OF_ALL and error is not self._latest:  # requests of one call share the same error
            self._latest = error
            self._breaker.on_failure(_now(), may_eject=True)


def sealed(key: str, answer: Answer) -> bytes:
    """Encode an answer for storage, with its hash."""
    data = _encode(answer)
    return _seal(key, data) + data


def opened(key: str, data: bytes) -> Answer | None:
    """Decode a stored answer; None if its hash does not match its data and key."""
    if data[:SEAL] != _seal(key, data[SEAL:]):
        return None
    try:
        return _decode(data[SEAL:])
    except msgspec.DecodeError:
        return None


def version_of(declared: DeclaredService, folder: Path) -> str:
    """Return the declared version, or a hash of the model's file, class, environment, interpreter and precision. The
    hash excludes weights and imported files. `folder`: working directory of the replicas.
    """
    if declared.version:
        return declared.version
    place = declared.model.partition(":")[0]
    path = folder / (place if place.endswith(".py") else f"{place.replace('.', '/')}.py")
    try:
        told = path.read_bytes()
    except OSError:
        what, need = "which version of the model is this?", "version: 1, for answers that outlive this gateway"
        raise SpecError(what, field="version", need=need, have=f"no file {path.name}", hint="version: 1") from None
    decides = [declared.model, declared.python, declared.precision, sorted(declared.job.get("env", {}).items()), told]
    return blake2b(msgspec.msgpack.encode(decides), digest_size=6).hexdigest()


def _seal(key: str, data: bytes) -> bytes:
    return blake2b(data, digest_size=SEAL, key=blake2b(key.encode(), digest_size=32).digest()).digest()


def _now() -> int:
    return time.monotonic_ns()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(Answer).decode

__all__ = ["PATIENCE", "Found", "SharedAnswers", "Store", "opened", "sealed", "version_of"]
