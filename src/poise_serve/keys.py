"""API keys of a gateway: their permissions and remaining allowances.

Keys come from a file, which is reloaded when it changes, or are tokens of the control plane, whose answers are cached
for `HOLDS` seconds: a revoked token is refused after that. A token in use is revalidated in the background after half
of that time, so that no request waits. While the control plane is unreachable, known tokens stay valid.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from poise.client import Client
from poise.config import Home
from poise.drivers.security import digest, own_account
from poise.drivers.yamlfile import load_kind
from poise.errors import Denied, PoiseError
from poise.model.keys import SCOPES_OF, Allowance, Key, compile_keys
from poise.model.reports.access import WhoReport
from poise.model.tenants import Role
from poise.units import SECOND
from poise_serve.kernel.spending import Bucket
from poise_serve.model.news import News, Spent
from poise_serve.peers import Peers
from poise_serve.refusals import Refused

HOLDS = 30.0
"""Seconds for which an answer of the control plane is cached."""

KNOWN = 4096
"""Maximum number of cached valid secrets, and of invalid ones."""

WITHIN = 2.0
"""Timeout in seconds of a request to the control plane."""

AT_ONCE, MOST_ASKED = 4, 64
"""Maximum concurrent requests to the control plane about known tokens, and about unknown ones; and maximum number of
unknown tokens being checked or waiting."""

LOOKED = 1.0
"""Interval in seconds at which the file is checked for changes."""


class Holder:
    """A key and its remaining allowances."""

    def __init__(self, key: Key, tenant: str, scopes: frozenset[str], now: int) -> None:
        self._rate: Bucket | None = None
        self._tokens: Bucket | None = None
        self.become(key, tenant, scopes, now)
        self.tell: Callable[[Spent], None] = lambda spent: None
        """Tells other gateways what was spent."""

    def become(self, key: Key, tenant: str, scopes: frozenset[str], now: int) -> None:
        """Use the changed permissions and allowances of the key with this name."""
        self.name = key.name
        self.tenant = tenant
        self.scopes = scopes
        self._models = key.models
        self._rate = _changed(self._rate, key.rate, now)
        self._tokens = _changed(self._tokens, key.tokens, now)

    @property
    def is_metered(self) -> bool:
        return self._tokens is not None

    def may_ask(self, model: str) -> bool:
        return not self._models or model in self._models

    def take(self, now: int) -> None:
        """Take one request from the allowances. Raises `Refused` if one is used up."""
        if self._tokens is not None and (wait := self._tokens.wait(now)):
            raise _exhausted(f"the key `{self.name}` has used its tokens", wait)
        if self._rate is not None:
            if wait := self._rate.wait(now):
                raise _exhausted(f"the key `{self.name}` has sent as many requests as it may", wait)
            self._rate.spend(1, now)
            self.tell(Spent(self.name, 1, 0))

    def spend(self, tokens: int, now: int) -> None:
        if self._tokens is not None:
            self._tokens.spend(tokens, now)
            self.tell(Spent(self.name, 0, tokens))

    def hear(self, spent: Spent, now: int) -> None:
        """Count what was spent at another gateway."""
        if self._rate is not None and spent.requests:
            self._rate.spend(spent.requests, now)
        if self._tokens is not None and spent.tokens:
            self._tokens.spend(spent.tokens, now)


class Usage:
    """Prometheus metrics of requests and tokens by key."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(name, about, ("key", "tenant", *labels), registry=registry)

        self.requests = counter("poise_key_requests", "Answered requests of a key", "model", "status")
        self.tokens = counter("poise_key_tokens", "Tokens that a key's requests took", "model", "kind")
        self.refused = counter("poise_key_refusals", "Requests of a key that it may not make", "reason")


class Keys:
    """All keys of a gateway. `file` is reloaded when it changes; with a `home`, its tokens are keys."""

    def __init__(
        self,
        file: Path | None,
        home: Home | None,
        now: Callable[[], int] = time.monotonic_ns,
        peers: Peers | None = None,
    ) -> None:
        self._peers = peers
        if peers is not None:
            peers.heard.append(self._hear)
        self._file, self._home, self._now = file, home, now
        self._stamp: tuple[int, int] | None = None
        self._looked = 0
        self._by_digest: dict[str, Holder] = {}
        self._by_token: dict[str, Key] = {}
        self._known: OrderedDict[str, tuple[Holder, int]] = OrderedDict()
        self._wrong: OrderedDict[str, int] = OrderedDict()  # separate, so that they evict no valid ones
        self._holders: dict[str, Holder] = {}
        self._asking: dict[str, asyncio.Task[Holder | None]] = {}
        self._strangers: set[str] = set()  # unknown tokens being checked
        self._turn, self._turn_of_strangers = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)
        if file is not None:
            self._read(file)
        if home is None and self._by_token:
            raise AssertionError("whoever has keys of the control plane names its home")

    async def holder(self, secret: str) -> Holder:
        """Return the holder of a secret. Raises `Refused`."""
        self._look()
        found = digest(secret)
        if (known := self._by_digest.get(found)) is not None:
            return known
        held = await self._of_home(secret, found) if self._home is not None and secret else None
        if held is None:
            raise Refused(401, _UNKNOWN, headers={"www-authenticate": "Bearer"})
        return held

    # --- of a file ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        now = self._now()
        if self._file is None or now - self._looked < LOOKED * SECOND:
            return
        self._looked = now
        try:
            self._read(self._file)
        except PoiseError:
            return  # partly written or invalid: keep the previous keys

    def _read(self, file: Path) -> None:
        try:
            found = file.stat()
        except OSError:
            found = None
        stamp = (found.st_mtime_ns, found.st_size) if found is not None else None
        if stamp is not None and stamp == self._stamp:
            return
        keys = compile_keys(load_kind(file, "keys"))
        self._stamp = stamp
        before = {holder.name: holder for holder in self._by_digest.values()}
        self._by_digest = {
            key.digest: self._made(before.get(key.name), key, key.tenant, key.scopes or frozenset())
            for key in keys
            if key.digest
        }
        self._by_token = {key.token: key for key in keys if key.token}
        self._known.clear()
        self._wrong.clear()

    # --- of the control plane ----------------------------------------------------------------------------------------

    async def _of_home(self, secret: str, found: str) -> Holder | None:
        now = self._now()
        held, since = self._known.get(found, (None, self._wrong.get(found, 0)))
        age = now - since if since else HOLDS * SECOND
        if age < HOLDS * SECOND:
            if held is not None and 2 * age >= HOLDS * SECOND:
                self._asks(secret, found, held)
            return held
        return await asyncio.shield(self._asks(secret, found, held))

    def _asks(self, secret: str, found: str, held: Holder | None) -> "asyncio.Task[Holder | None]":
        """Check a token at the control plane, once at a time. Raises `Refused` if too many unknown ones wait."""
        if (asking := self._asking.get(found)) is not None:
            return asking
        if held is None:
            if len(self._strangers) >= MOST_ASKED:
                raise Refused(503, "too many unknown keys at once", headers={"retry-after": "1"})
            self._strangers.add(found)
        asking = self._asking[found] = asyncio.create_task(self._ask(secret, found, held))
        asking.add_done_callback(lambda asked: self._asked(found, asked))
        return asking

    def _asked(self, found: str, asked: "asyncio.Task[Holder | None]") -> None:
        del self._asking[found]
        self._strangers.discard(found)
        if not asked.cancelled():
            asked.exception()  # the client may have disconnected

    async def _ask(self, secret: str, found: str, before: Holder | None) -> Holder | None:
        try:
            async with self._turn if before is not None else self._turn_of_strangers:
                who = await asyncio.to_thread(self._whoami, secret)
        except Denied:
            held = None
        except (PoiseError, OSError) as error:
            if before is None:
                raise Refused(
                    503, "the control plane that knows the keys is away", headers={"retry-after": "5"}
                ) from error
            held = before
        else:
            held = self._held(who)
        self._known.pop(found, None)
        self._wrong.pop(found, None)
        if held is not None:
            self._known[found] = held, self._now()
        else:
            self._wrong[found] = self._now()
        for kept in (self._known, self._wrong):
            if len(kept) > KNOWN:
                kept.popitem(last=False)
        return held

    def _whoami(self, secret: str) -> WhoReport:
        with Client(self._home, patience=0.0, token=secret) as client:
            return client.whoami(WITHIN)

    def _held(self, who: WhoReport) -> Holder | None:
        """Return the holder of a token; None if the file lists tokens without this one."""
        if self._by_token and who.token not in self._by_token:
            return None
        name = who.name or who.token or "home"
        key = self._by_token.get(who.token) or Key(name=name, token=who.token)
        role = Role[who.role.upper()]
        scopes = SCOPES_OF[role]
        if who.accounts and role is not Role.ADMIN and who.account != own_account():  # replicas run as that account
            scopes -= {"admin"}
        scopes = scopes if key.scopes is None else scopes & key.scopes
        tenant = key.tenant or who.tenant
        held = self._holders[who.token] = self._made(self._holders.get(who.token), key, tenant, scopes)
        return held

    def _made(self, before: Holder | None, key: Key, tenant: str, scopes: frozenset[str]) -> Holder:
        """Return the holder of a key: the one before, with what it has left, or a new one."""
        if before is not None:
            before.become(key, tenant, scopes, self._now())
            return before
        holder = Holder(key, tenant, scopes, self._now())
        if self._peers is not None:
            holder.tell = self._peers.tell
        return holder

    def _hear(self, gateway: int, news: News) -> None:
        if isinstance(news, Spent):
            for holder in (*self._by_digest.values(), *self._holders.values()):
                if holder.name == news.key:
                    holder.hear(news, self._now())


def _changed(bucket: Bucket | None, allowance: Allowance | None, now: int) -> Bucket | None:
    if bucket is None or allowance is None:
        return None if allowance is None else Bucket(allowance, now)
    bucket.become(allowance, now)
    return bucket


def _exhausted(message: str, wait: int) -> Refused:
    return Refused(429, message, headers={"retry-after": str(-(-wait // SECOND))})


_UNKNOWN = "this gateway needs a key, as `Authorization: Bearer KEY`, and knows no such key"

__all__ = ["Holder", "Keys", "Usage"]
