"""A router's estimates of when each server would answer a request: what is in flight there, and the request itself.

A request without a prompt is one piece of work (`poise_serve.model.speeds`), and so is one whose answer comes in one
piece. Its size is its own, less the tokens of its prompt that the server is believed to keep
(`poise_serve.model.prefixes`).

A language model that streams has two stages, whose speeds and whose work in flight are learned apart: reading the
prompt, until the first byte of the answer, and writing the answer. Their limits differ: prompts are read about one
after the other, as fast as the device computes, while answers are written side by side, as fast as its memory is read.
A server that has read its prompts is soon free for another one, however long it will still write. How many tokens an
answer will have is not known when its request comes; the mean is expected. The speed of writing is learned with the
tokens that were written, so that it does not depend on which server got the long answers.
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from poise_serve.model.prefixes import USUAL, Found, Prefixes
from poise_serve.model.routing import Asked, Prompt, ReplicaView, RouteView
from poise_serve.model.speeds import Reckoner

LATEST = 0.005
"""Minimum weight of the latest answer in the mean length of answers."""

MOST_STALLED = 0.95
"""Maximum part of the time to write an answer for which reading may have kept the server from it."""

MOST_WRITTEN = 1e7
"""Maximum number of tokens of an answer: it comes from servers and may be anything."""

LEAST_READ = 16.0
"""Tokens of a prompt that are read at least: servers read the last block even if they keep it."""


class Known(NamedTuple):
    """A server as the router knows it without learning: its weight, its number of requests from this router, and
    whether it has room for one more.
    """

    name: str
    weight: float
    running: int
    has_room: bool


class Foreseen(NamedTuple):
    """`backlog`, `cost` and `delays` of a `ReplicaView`."""

    backlog: int
    cost: int
    delays: int


class _Sent(NamedTuple):
    """A request in flight. `found`: what was known of its prompt when it was sent."""

    asked: Asked
    kind: Hashable
    found: Found


class _Clock:
    """Nanoseconds during which a server had prompts to read."""

    def __init__(self) -> None:
        self._prompts = self._since = self._total = 0

    def change(self, prompts: int, now: int) -> None:
        self._total = self.at(now)
        self._prompts, self._since = self._prompts + prompts, now

    def at(self, now: int) -> int:
        return self._total + (now - self._since) * (self._prompts > 0)


class _Stalls:
    """How far reading keeps a server from writing: the part of the time with prompts to read that is added to the time
    to write. It is 1 if a server writes nothing meanwhile, and less if it does both in the same steps. This is the
    least-squares estimate of `time = part * reading + pace * tokens`, over all answers of one kind.
    """

    def __init__(self) -> None:
        self._reading = self._both = self._tokens = self._timed_reading = self._timed_tokens = 0.0

    @property
    def part(self) -> float:
        determinant = self._reading * self._tokens - self._both * self._both
        if determinant <= 1e-9 * self._reading * self._tokens:
            return 0.0
        found = (self._timed_reading * self._tokens - self._timed_tokens * self._both) / determinant
        return min(1.0, max(0.0, found))

    def add(self, took: float, reading: float, tokens: float) -> None:
        kept = 1.0 - LATEST
        self._reading = kept * self._reading + reading * reading
        self._both = kept * self._both + reading * tokens
        self._tokens = kept * self._tokens + tokens * tokens
        self._timed_reading = kept * self._timed_reading + took * reading
        self._timed_tokens = kept * self._timed_tokens + took * tokens


class _Mean:
    """Mean number of tokens of an answer."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0

    def expected(self, most: float) -> float:
        """Return the expected number of an answer that has at most so many; 0 if that is unknown."""
        return max(1.0, min(self._mean, most or self._mean))

    def add(self, wrote: float) -> None:
        self._count += 1
        self._mean += max(1.0 / self._count, LATEST) * (wrote - self._mean)


class Estimates:
    """The estimates for all servers. `kind`: a request's class, such as its model."""

    def __init__(self) -> None:
        self._reading, self._writing = Reckoner(), Reckoner()
        self._prefixes: dict[str, Prefixes] = {}
        self._sent: dict[tuple[str, str], _Sent] = {}
        self._wrote: dict[Hashable, _Mean] = {}
        self._stalls: dict[Hashable, _Stalls] = {}
        self._clocks: dict[str, _Clock] = {}
        self._written: dict[tuple[str, str], tuple[int, int]] = {}  # when writing began, and the clock at that instant

    def add(self, server: str, now: int, like: str = "", keeps: float = USUAL) -> None:
        """Add a server that keeps prompts of this many tokens in total; `like` as in `Reckoner.add`."""
        self._reading.add(server, now, like)
        self._writing.add(server, now, like)
        self._prefixes[server] = Prefixes(keeps)
        self._clocks[server] = _Clock()

    def remove(self, server: str) -> None:
        self._reading.remove(server)
        self._writing.remove(server)
        del self._prefixes[server], self._clocks[server]

    def prefixes(self, server: str) -> Prefixes:
        """Return the prefixes that this server is believed to keep."""
        return self._prefixes[server]

    def sent(self, server: str, request: str, asked: Asked, now: int, kind: Hashable = "") -> None:
        self._reading.sent(server, request, self._size(server, asked), now, _reading(asked, kind))
        found = Found(0, 0)
        if asked.prompt is not None and asked.prompt.blocks:
            found = self._prefixes[server].found(asked.prompt.blocks)
            self._prefixes[server].use(asked.prompt.blocks, asked.prompt.block)
        self._sent[server, request] = _Sent(asked, kind, found)
        self._clocks[server].change(1, now)

    def began(self, server: str, request: str, now: int) -> None:
        """Record the first byte of an answer that streams: its prompt is read."""
        sent = self._sent.get((server, request))
        if sent is None or (server, request) in self._written or not _streams(sent.asked.prompt):
            return
        self._reading.answered(server, request, now)
        self._writing.sent(server, request, self._writes(sent.asked, sent.kind), now, sent.kind)
        self._clocks[server].change(-1, now)
        self._written[server, request] = now, self._clocks[server].at(now)

    def answered(
        self,
        server: str,
        request: str,
        now: int,
        held: int = 0,
        *,
        wrote: float = 0.0,
        cached: float | None = None,
    ) -> None:
        """Record an answer. `held`: nanoseconds during which its client did not read and blocked the server. `wrote`:
        tokens of the answer, 0 if that is unknown. `cached`: the part of the prompt, from 0 to 1, that the server tells
        to have kept.
        """
        sent = self._sent.pop((server, request), None)
        if sent is None:
            return
        wrote = min(wrote, MOST_WRITTEN)
        began = self._written.pop((server, request), None)
        if began is not None:
            stalled = self._stalled(server, sent.kind, began, now, held, wrote)
            self._writing.answered(server, request, now, held + stalled, wrote)
        else:
            self._reading.answered(server, request, now, held)
            self._clocks[server].change(-1, now)
        if wrote > 0.0:
            self._wrote.setdefault(sent.kind, _Mean()).add(wrote)
        prompt = sent.asked.prompt
        if cached is not None and prompt is not None:
            self._prefixes[server].told(sent.found, round(cached * prompt.tokens / prompt.block))

    def dropped(self, server: str, request: str, now: int) -> None:
        """Remove a cancelled or failed request; estimates do not change."""
        if self._sent.pop((server, request), None) is None:
            return
        if self._written.pop((server, request), None) is not None:
            self._writing.dropped(server, request, now)
        else:
            self._reading.dropped(server, request, now)
            self._clocks[server].change(-1, now)

    def known(self, server: str, asked: Asked, now: int, kind: Hashable = "") -> Foreseen:
        """Foresee an answer. While a prompt is read, the answers that are being written wait, as far as `_Stalls` has
        learned; and the prompts that are to be read there show how many will come to wait behind it.
        """
        prompts, backlog, cost = self._reading.known(server, self._size(server, asked), now, _reading(asked, kind))
        if not _streams(asked.prompt):
            return Foreseen(backlog, cost, 0)
        answers, more, writing = self._writing.known(server, self._writes(asked, kind), now, kind)
        part = self._stalls[kind].part if kind in self._stalls else 0.0
        return Foreseen(backlog + more, cost + writing, int(cost * (part * answers + prompts)))

    def view(self, asked: Asked, servers: Iterable[Known], turn: int, now: int, kind: Hashable = "") -> RouteView:
        """Build a router's view of a request and the candidate servers. The random seed is `turn`."""
        replicas = []
        for server in servers:
            foreseen = self.known(server.name, asked, now, kind)
            replicas.append(
                ReplicaView(
                    name=server.name,
                    weight=server.weight,
                    outstanding=server.running,
                    backlog=foreseen.backlog,
                    cost=foreseen.cost,
                    delays=foreseen.delays,
                    open=server.has_room,
                )
            )
        return RouteView(now=now, asked=asked, replicas=tuple(replicas), turn=turn, seed=turn)

    def lasting(self, server: str, asked: Asked, now: int, kind: Hashable = "") -> float:
        """Estimated nanoseconds from sending this request to the end of its answer, including the effect of concurrent
        requests; 0 before the first answer.
        """
        reading = self._reading.lasting(server, self._size(server, asked), now, _reading(asked, kind))
        if not _streams(asked.prompt):
            return reading
        writing = self._writing.lasting(server, self._writes(asked, kind), now, kind)
        return reading + writing if reading and writing else 0.0

    def _stalled(self, server: str, kind: Hashable, began: tuple[int, int], now: int, held: int, wrote: float) -> int:
        """Learn and return for how many nanoseconds reading kept the server from writing an answer."""
        since, clock = began
        took, reading = float(max(0, now - since - held)), float(self._clocks[server].at(now) - clock)
        stalls = self._stalls.setdefault(kind, _Stalls())
        stalled = min(stalls.part * reading, MOST_STALLED * took)
        stalls.add(took, reading, wrote or 1.0)
        return int(stalled)

    def _size(self, server: str, asked: Asked) -> float:
        """Return the size of the first stage there."""
        prompt = asked.prompt
        if prompt is None:
            return asked.size
        rest = 0.0 if prompt.streams else prompt.writes
        kept = self._prefixes[server].cached(prompt.blocks) * prompt.block
        return rest + max(min(LEAST_READ, prompt.tokens), prompt.tokens - kept)

    def _writes(self, asked: Asked, kind: Hashable) -> float:
        """Return the expected length of an answer."""
        most = 0.0 if asked.prompt is None else asked.prompt.writes
        mean = self._wrote.get(kind)
        return most or 1.0 if mean is None else mean.expected(most)


def _streams(prompt: Prompt | None) -> bool:
    return prompt is not None and prompt.streams


def _reading(asked: Asked, kind: Hashable) -> Hashable:
    """Return the kind of the first stage: answers in one piece include writing."""
    return kind, _streams(asked.prompt)


__all__ = ["Estimates", "Foreseen", "Known"]
