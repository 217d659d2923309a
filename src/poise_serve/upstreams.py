"""A front for model servers with the OpenAI API: one address that routes, limits, retries and monitors requests.
Models that are Poise services (`own`) share this address, and take precedence over upstream models of the same name.

    front = Upstreams(compile_upstreams(document), choose, Metrics(CollectorRegistry()), keys)
    await front.start()
    ...                     # an ASGI application for the routes `openai.ASKED` and /v1/models
    await front.change(compile_upstreams(another), choose)
    await front.drained()
    await front.stop()

Rules:

* Bodies and answers are streamed unchanged, except for the model in a body that names an alias, or that goes to a
  fallback; then `x-poise-model` of the answer names it. At most 128 KiB of an answer are buffered for its client; a
  client that reads nothing for `stalled` is dropped. When a client disconnects, its upstream request is closed at once.
* A request is retried on another upstream until the first byte of an answer is sent: after a failed connection, or 502,
  503 or 429; within the shared retry budget and `retries.most` per request. If a connection is lost after the request
  was sent, or a proxy reports that (502), it is retried once at most: the request may have killed the upstream. It is
  not retried if the upstream keeps something of it (`Question.is_kept`). A prompt that lost two upstreams, or one of
  them twice, is quarantined (`poise_serve.kernel.quarantine`). A request is also retried after 401,
  403 or 404 if another upstream has the model: the front's key or configuration may be wrong for the first. This retry
  is not charged to the budget, and counts as a failure only if another upstream then succeeds: otherwise the request is
  at fault. A started answer is never restarted: an interrupted stream ends with an error event, any other answer with a
  closed connection.
* The timeout, or the client's own (`x-request-timeout-seconds`, `x-envoy-upstream-rq-timeout-ms`,
  `x-stainless-read-timeout`), covers waiting, all attempts and the answer; upstreams get the remaining time.
* Requests over capacity are refused at once, with 429 or 503 and the time to retry after.
* While no upstream of a model is up, its requests, also retried ones, wait for at most `hold`. The upstreams that are
  down are then probed more often. An upstream that refuses a connection is down until a probe succeeds. Such a request
  is retried without the budget, because nothing was sent.
* A request that no upstream of its model can answer goes to the fallbacks of the model, in their order, before a byte
  of an answer is sent: after 404, 429, 502 and 503, also those of upstreams. A prompt that lost upstreams does not.
* A route that an upstream does not have (404, 405 or 501) is retried on the others, and not tried there again for a
  while. The routes of chats, completions and embeddings are expected everywhere.
"""

import asyncio
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from poise.errors import SpecError
from poise.model.serving_upstreams import Discovery, Front, Upstream
from poise.units import MILLISECOND, SECOND, format_bytes, format_duration
from poise_serve import reported
from poise_serve.asgi import (
    ASK,
    GONE,
    READ,
    Gone,
    NoRoom,
    Receive,
    Room,
    Scope,
    Send,
    TooLarge,
    abort,
    answer,
    client_of,
    may_ask,
    tell_methods,
    whole_body,
)
from poise_serve.client import FAILURES, NOT_SENT, Client, Response, answered_on, asked_on, told_to_wait
from poise_serve.discovery import Discoverer
from poise_serve.embeddings import Embeddings
from poise_serve.health import Prober
from poise_serve.kernel.aliases import Aliases
from poise_serve.kernel.quarantine import LOSSES, Quarantine
from poise_serve.kernel.resilience import RetryBudget
from poise_serve.metrics import Metrics
from poise_serve.model.changes import UpstreamReport
from poise_serve.model.news import Cleared, Lost, News, Outcome, Probed, Retried, Sent
from poise_serve.openai import (
    ASKED,
    EMBEDDINGS,
    END_OF_EVENT,
    MODELS,
    NOT_AGAIN,
    SOME_HAVE,
    USAGE_WITHIN,
    Question,
    Refused,
    cached_share,
    error_event,
    left,
    naming,
    only_embeddings,
    prompt_key,
    read_deadlines,
    read_lane,
    read_question,
    told_tokens,
    unknown_model,
    unnamed_model,
)
from poise_serve.peers import Peers
from poise_serve.pool import Choose, Member, Place, Pool, model_of
from poise_serve.service import ANYBODY, Asker

AGAIN = frozenset({429, 502, 503})
"""Status codes that are retried on another upstream."""

RESTS = frozenset({429, 503})
"""Status codes whose Retry-After is respected."""

REFUSES_US = frozenset({401, 403, 404})
"""Status codes of an upstream that rejects the front's key, or lacks a model that others have. These answers are
instant, so the upstream looks idle. They count as failures once another upstream succeeds with the same request."""

LACKS_ROUTE = frozenset({404, 405, 501})
"""Status codes of an upstream that has not a route of `SOME_HAVE`."""

FALLS_BACK = frozenset({404, 429, 502, 503})
"""Status codes after which the fallbacks of a model answer."""

LOST_BEHIND = 502
"""Status of a proxy whose own server was lost, perhaps because of the request."""

FAULTY = frozenset({500, 502, 503, 504})
"""Status codes that count as failures of an upstream. 429 does not: it only means busy."""

CLOSING = 100 * MILLISECOND
"""Pause before a lost request is sent to the same upstream again: a dying upstream closes its connections in turn."""

HUNG_UP = 499
"""Status in metrics for a request whose client disconnected; nginx uses the same code."""


class Stalled(Exception):
    """The client has read nothing for too long."""


class _Falls(Refused):
    """An upstream refused a request that a fallback may answer."""

    def __init__(self, outcome: Outcome, status: int, name: str) -> None:
        super().__init__(status, f"The upstream `{name}` answered {status}", code="upstream_failed", reason=str(status))
        self.outcome = outcome


class Upstreams:
    """The ASGI application."""

    def __init__(
        self,
        front: Front,
        choose: Choose,
        metrics: Metrics,
        keys: Mapping[str, str],
        own: Mapping[str, Embeddings] | None = None,
        peers: Peers | None = None,
        memory: Path | None = None,
    ) -> None:
        """`choose` is the router. `keys`: values of the environment variables named by `key_from`. `own` is live.
        `peers`: other gateways before the same upstreams. `memory`: the file with the last reports of upstreams.
        """
        self._memory = memory
        self._front = front
        self._aliases = Aliases(front.aliases)
        self._metrics = metrics
        self._own = own if own is not None else {}
        self.pool = Pool(front, choose, metrics, _now, self._own, peers)
        self._environment = keys
        check_front(front, keys)
        self._keys = _keys(front, keys)
        self._discovered: dict[str, tuple[Upstream, ...]] = {}
        self._discoverer: Discoverer
        self._budget = RetryBudget(front.retries)
        self._peers = peers
        self._quarantine = Quarantine()
        self._room = Room(front.bodies)
        self._running: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._client: Client
        self._prober: Prober

    async def start(self) -> None:
        """Start; returns after probing every upstream once, with or without success."""
        self._client = Client(self._keys, self._front.health.timeout)
        self._prober = Prober(self.pool, self._client, self._front.health, self._metrics, _now, self._tell)
        self.pool.on_held = self._prober.hurry
        if self._peers is not None:
            self._peers.heard.append(self._hear)
            self._peers.known.append(self._prober.known)
            self._peers.links.become(self._front.peers.urls, self._keys.get(self._front.peers.key_from, ""))
        self._discoverer = Discoverer(self._found, memory=self._memory)
        self._discovered = await self._discoverer.look_up(self._front.discover)
        self.pool.change(self._front, self._upstreams_now())
        await self._prober.probe(self.pool.members)

    async def change(self, front: Front, choose: Choose) -> None:
        """Use another configuration, and another router. New upstreams are probed once, before the others get no more
        requests. Running requests are answered. Raises `SpecError` for a variable that is not set.
        """
        keys = _keys(front, self._environment)
        self._keys.clear()
        self._keys.update(keys)
        before = {one.name: self._discovered.get(one.name, ()) for one in front.discover}
        self._discovered = before | await self._discoverer.look_up(front.discover)
        self._front = front
        self._aliases = Aliases(front.aliases)
        self._budget.rules, self._prober.rules = front.retries, front.health
        if self._peers is not None:
            self._peers.links.become(front.peers.urls, keys.get(front.peers.key_from, ""))
        self.pool.choose = choose
        await self._take(front)

    async def _found(self, discovery: Discovery, upstreams: tuple[Upstream, ...]) -> None:
        """Use the upstreams that were found. Those that are reported to end get no more requests at once."""
        if self._discovered.get(discovery.name) == upstreams:
            return
        self._discovered[discovery.name] = upstreams
        if not discovery.is_reported:
            await self._take(self._front)
            return
        self.pool.change(self._front, self._upstreams_now())
        self.pool.keep({one.name for one in self._upstreams_now()})
        self._prober.follow(at_once=True)

    async def _take(self, front: Front) -> None:
        """Use these upstreams and the discovered ones. Others get no more requests, once the new ones are probed."""
        begun = self.pool.change(front, self._upstreams_now())
        await self._prober.probe(begun)
        self.pool.keep({one.name for one in self._upstreams_now()})
        self._prober.follow()

    def _upstreams_now(self) -> list[Upstream]:
        return [*self._front.upstreams, *(one for found in self._discovered.values() for one in found)]

    def drain(self, name: str, *, draining: bool) -> None:
        """Let an upstream finish its requests and send it no more, or send it requests again."""
        self.pool.drain(name, draining=draining)

    @property
    def states(self) -> list[UpstreamReport]:
        """The upstreams as they are now."""
        return self.pool.states()

    async def drained(self) -> None:
        """Refuse new requests and wait for the running ones, for at most `drain`."""
        self._stopping = True
        if self._running:
            await asyncio.wait(list(self._running), timeout=self._front.drain / SECOND)

    async def stop(self) -> None:
        """Refuse the requests that are still running, and close all connections."""
        self._stopping = True
        if left_over := list(self._running):
            for task in left_over:
                task.cancel()
            await asyncio.wait(left_over)
        await self._discoverer.stop()
        self.pool.close()
        await self._prober.stop()
        await self._client.close()

    @property
    def models(self) -> dict[str, list[str]]:
        """Names of the models known now, by route."""
        known = [*self.pool.models(), *self._aliases]
        return {path: known + list(self._own) * (path == EMBEDDINGS) for path in ASKED}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        try:
            allowed = _methods(path)
            if method == "OPTIONS":
                await tell_methods(send, allowed)
            elif method not in allowed:
                message = f"{path[:80]} takes {allowed[0]}"
                raise Refused(405, message, code="method_not_allowed", allow=", ".join(allowed))
            elif allowed is ASK:
                await self._serve(scope, receive, send)
            else:
                await self._list(path.removeprefix(MODELS).removeprefix("/"), send)
        except Refused as refused:
            self._metrics.errors.labels("", "", refused.reason).inc()
            await answer(send, refused.status, refused.body(path), refused.headers())

    async def _list(self, name: str, send: Send) -> None:
        models = self.pool.models() | {own: model_of(own, "poise") for own in self._own}
        models |= {alias: model_of(alias, "poise") for alias in self._aliases}
        if name and name not in models:
            raise unknown_model(name, list(models))
        found = models[name] if name else {"object": "list", "data": list(models.values())}
        await answer(send, 200, _encode(found), [(b"content-type", b"application/json")])

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _Request(scope, send, self._front.stalled / SECOND)
        try:
            await self._read(request, receive)
            if self._stopping:
                raise Refused(503, "This front is being stopped", code="unavailable", reason="stopping", retry_after=1)
            await self._watched(request)
        except Gone:
            return
        finally:
            self._room.give_back(len(request.body), request.client)

    async def _watched(self, request: "_Request") -> None:
        """Answer the request, and cancel it if its client disconnects."""
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("an application runs in a task")
        self._running.add(task)

        def gone() -> None:
            if not request.is_over:
                request.is_gone = True
                task.cancel()

        request.scope["extensions"][GONE]["then"](gone)
        try:
            await self._bounded(request)
        except asyncio.CancelledError:
            if not request.is_gone and not self._stopping:
                raise
            task.uncancel()
            if request.is_gone:
                request.status = request.status or HUNG_UP
                self._count(request, "gone")
            else:
                self._count(request, "stopping")
                await self._fail(request, 503, "This front is being stopped", "unavailable")
        except Stalled:
            self._count(request, "stalled")
            await abort(request.scope)
        finally:
            request.is_over = True
            self._running.discard(task)
            self._told(request)

    async def _read(self, request: "_Request", receive: Receive) -> None:
        """Read and check the headers and the body."""
        scope, front = request.scope, self._front
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        whole, first = read_deadlines(headers)
        request.end_within(front.timeout, whole, first)
        request.is_deferred = read_lane(headers)
        request.asker = _asker(scope)
        try:
            async with asyncio.timeout_at(_loop_time(request.due)):
                request.body = await whole_body(scope, receive, front.body, self._room)
        except TooLarge:
            message = f"The body is larger than {format_bytes(front.body)}, which is the most that is taken here"
            raise Refused(413, message, code="body_too_large") from None
        except NoRoom:
            message = "The requests that are being answered are as large together as they may"
            raise Refused(429, message, code="overloaded", reason="overloaded", retry_after=1) from None
        except TimeoutError:
            raise Refused(408, "The body was not here in time", code="timeout", reason="timeout") from None
        question = read_question(scope["path"], request.body)
        request.model = asked = question.model or self._only_model()
        model = self._aliases.resolve(asked, question.key)
        request.models = [model, *front.fallbacks.get(model, ())]
        request.question = question._replace(model=model)
        request.own = self._own.get(model)
        if request.own is None:
            if asked not in self._aliases and len(request.models) == 1:
                self.pool.serving(model)
            self._check_quarantine(request)
        elif scope["path"] != EMBEDDINGS:
            raise only_embeddings(request.own.name)
        else:
            request.end_within(request.own.timeout, whole, first)
        if not may_ask(scope, asked):
            message = f"This key may not ask the model `{asked}`"
            raise Refused(403, message, code="model_not_allowed", param="model")
        request.headers = asked_on(scope["headers"])
        query = scope["query_string"].decode("latin-1")
        request.target = f"{scope['path']}?{query}" if query else scope["path"]
        self._metrics.requests.labels(asked).inc()
        self._budget.on_request(request.began)

    def _only_model(self) -> str:
        """Return the model of a request that names none. Raises `Refused` if there are several."""
        known = list(self.pool.models())
        if len(known) != 1:
            raise unnamed_model(known)
        return known[0]

    def _check_quarantine(self, request: "_Request") -> None:
        """Raises `Refused` for a quarantined prompt."""
        if not self._quarantine:
            return
        key, now = prompt_key(request.scope["path"], request.body), _now()
        if held := self._quarantine.held(key, now):
            message = f"{LOSSES} upstreams were lost while they answered this prompt; {_for_how_long(held)}"
            away = math.ceil(held / SECOND)
            raise Refused(
                422, message, code="quarantined", reason="quarantined", param="model", retry_after=away, final=True
            )
        request.lost = int(self._quarantine.suspects(key, now))

    async def _bounded(self, request: "_Request") -> None:
        """Answer the request, or refuse it when its time is over."""
        try:
            async with asyncio.timeout_at(_loop_time(request.first_by)) as timer:
                request.timer = timer
                await self._ask_models(request)
        except TimeoutError:
            taken = format_duration(_now() - request.began)
            self._count(request, "timeout")
            await self._fail(request, 504, f"No answer was complete after {taken}, the time there was", "timeout")
        except Refused as refused:
            self._count(request, refused.reason)
            request.status = refused.status
            request.is_over = True
            await answer(request.send, refused.status, refused.body(request.question.path), refused.headers())

    async def _ask_models(self, request: "_Request") -> None:
        """Ask the model of the request; while it cannot answer, ask its fallbacks."""
        for place, model in enumerate(request.models):
            request.question = request.question._replace(model=model)
            request.own = self._own.get(model)
            request.has_fallback = place + 1 < len(request.models)
            try:
                if request.own is None:
                    await self._try(request)
                elif request.question.path == EMBEDDINGS:
                    await self._embed(request, request.own)
                else:
                    raise only_embeddings(model)
                return
            except Refused as refused:
                if not request.has_fallback or refused.status not in FALLS_BACK or refused.final:
                    raise
                self._metrics.fallbacks.labels(model, request.models[place + 1], refused.reason).inc()

    async def _embed(self, request: "_Request", own: Embeddings) -> None:
        """Answer from a model that is a Poise service."""
        request.server = own.name
        patience = 0 if request.is_ours else max(1, request.first_by - _now())
        body = await own.embed(request.body, patience, request.is_deferred, request.asker)
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), *request.renamed]
        await self._begin(request, 200, headers)
        request.is_over = True
        await request.pass_on(body, more=False)

    async def _try(self, request: "_Request") -> None:
        """Try one upstream after the other until one answers."""
        due = request.due
        if self._front.objective:
            due = min(due, request.began + self._front.objective)
        tried: set[str] = set()
        tries = 0  # without those whose connection was refused
        while True:
            if request.lost_by and not self._is_another_open(request, tried):
                await asyncio.sleep(CLOSING / SECOND)
            place = await self.pool.admit(
                request.question,
                due,
                tried,
                deferred=request.is_deferred,
                client=request.client,
                may_hold=not request.has_fallback,
            )
            request.server = name = place.member.name
            outcome: Outcome = "neither"
            may_again = tries < self._front.retries.most
            tried.add(name)
            tries += 1
            try:
                outcome, reason = await self._ask(request, place, may_again, tried)
            except FAILURES as error:
                outcome, reason = "failed", "connection"
                held = 0 if isinstance(error, NOT_SENT) else self._lost(request, name)
                if request.is_begun:
                    self._count(request, "cut")
                    message = f"The upstream `{name}` was lost in the middle of its answer{_as_another(held)}"
                    await self._fail(request, 502, message, "cut")
                    return
                is_final, is_down = request.lost >= LOSSES, self._is_refused(place.member, error)
                tries -= is_down
                if is_final or not (is_down or (may_again and self._may_retry())):
                    message = f"The upstream `{name}` failed: {type(error).__name__}{_as_another(held)}"
                    if is_final and request.question.is_kept:
                        message += ". It may have carried it out, so the request is not repeated"
                    raise Refused(502, message, code="upstream_failed", reason=reason, final=is_final) from None
            except _Falls as refusal:
                outcome = refusal.outcome
                raise
            except asyncio.CancelledError:
                if request.is_ours and request.timer.expired():  # a client's timeout may be too short for any
                    outcome = "failed"
                raise
            finally:
                wrote, cached = request.wrote, cached_share(request.end)
                self.pool.give_back(place, outcome, request.held, wrote=wrote, cached=cached)
            if not reason:
                return
            self._metrics.retries.labels(name, reason).inc()

    async def _ask(self, request: "_Request", place: Place, may_again: bool, tried: set[str]) -> tuple[Outcome, str]:
        """Send the request to this upstream. Returns the outcome and the reason to retry; empty if it was answered."""
        headers = [*request.headers, *left(max(1, request.due - _now()))]
        response = await self._client.ask(place.member, request.target, request.sent, headers)
        try:
            status, path = response.status, request.question.path
            if path in SOME_HAVE and status in LACKS_ROUTE:
                self.pool.lacks(place.member, path)
                return "refused", "route"
            if status == LOST_BEHIND:
                request.on_loss()
            may_again = may_again and request.lost < LOSSES and not _is_final(response)
            if status in RESTS:
                self.pool.rest(place.member, told_to_wait(response))
            refuses_us = status in REFUSES_US and len(self.pool.serving(request.question.model, path)) > 1
            outcome: Outcome = "failed" if status in FAULTY else "neither" if refuses_us else "refused"
            if refuses_us:
                request.refused_by.append(place.member)
            elif status < 300:
                for member in request.refused_by:
                    self.pool.failed(member)
            may_again = may_again and self._is_another_open(request, tried)
            if may_again and (refuses_us or (status in AGAIN and self._may_retry())):
                return outcome, str(status)
            if status in AGAIN and request.has_fallback and request.lost < LOSSES:
                raise _Falls(outcome, status, place.member.name)
            if path in SOME_HAVE and status < 300:
                place.member.having[path] = request.question.model
            await self._pass_on(request, place, response)
            if status >= 400:
                self._count(request, str(status))
                return outcome, ""
            if self._quarantine:
                key = prompt_key(request.scope["path"], request.body)
                if self._quarantine.answered(key):
                    self._tell(Cleared(key))
            return "answered", ""
        finally:
            response.close()  # no effect after a complete read

    def _is_refused(self, member: Member, error: Exception) -> bool:
        """Whether the upstream refused the connection. Then it gets no requests until a probe succeeds."""
        if not isinstance(error, aiohttp.ClientConnectorError) or not isinstance(
            error.os_error, ConnectionRefusedError
        ):
            return False
        self._prober.down(member)
        return True

    def _may_retry(self) -> bool:
        """Take a retry from the budget. Returns whether there was one."""
        if not self._budget.take(_now()):
            return False
        self._tell(Retried())
        return True

    def _tell(self, news: News) -> None:
        if self._peers is not None:
            self._peers.tell(news)

    def _hear(self, gateway: int, news: News) -> None:
        if isinstance(news, Sent):
            self._budget.on_request(_now())
        elif isinstance(news, Retried):
            self._budget.on_retry(_now())
        elif isinstance(news, Lost):
            self._quarantine.lost(news.key, _now(), news.server)
        elif isinstance(news, Cleared):
            self._quarantine.answered(news.key)
        elif isinstance(news, Probed):
            self._prober.hear(news)

    def _lost(self, request: "_Request", server: str) -> int:
        """Record an upstream that the request may have killed. Returns the quarantine time of its prompt."""
        key = prompt_key(request.scope["path"], request.body)
        request.on_loss()
        by = f"{server} again" if server == request.lost_by else server  # concurrent losses of one name count once
        request.lost_by = server
        self._tell(Lost(key, by))
        return self._quarantine.lost(key, _now(), by)

    def _is_another_open(self, request: "_Request", tried: set[str]) -> bool:
        """Whether another upstream could take the request."""
        now = _now()
        question = request.question
        others = [member for member in self.pool.serving(question.model, question.path) if member.name not in tried]
        return any(member.is_open(now) for member in others)

    async def _pass_on(self, request: "_Request", place: Place, response: Response) -> None:
        """Stream the answer to the client. Send nothing before its first byte: until then a retry is possible."""
        chunk = await response.content.readany()
        request.is_stream = response.content_type == "text/event-stream"
        if request.is_stream and response.status < 300:
            self.pool.began(place)
        await self._begin(request, response.status, [*answered_on(response, place.member), *request.renamed])
        while chunk and not response.content.at_eof():
            await request.pass_on(chunk)
            chunk = await response.content.readany()
        request.is_over = True
        await request.pass_on(chunk, more=False)

    async def _begin(self, request: "_Request", status: int, headers: list[tuple[bytes, bytes]]) -> None:
        request.timer.reschedule(_loop_time(request.due))
        self._metrics.first_byte.labels(request.question.model).observe((_now() - request.began) / SECOND)
        request.status = status
        await request.send({"type": "http.response.start", "status": status, "headers": headers})
        request.is_begun = True

    async def _fail(self, request: "_Request", status: int, message: str, code: str) -> None:
        """Report an error: as the answer, as the last event of a begun stream, or by closing the connection."""
        request.is_over = True
        if not request.is_begun:
            request.status = status
            refused = Refused(status, message, code=code)
            await answer(request.send, status, refused.body(request.question.path), refused.headers())
        elif request.is_stream and request.is_between_events:
            await request.pass_on(error_event(message, code, request.question.path), more=False)
        else:
            await abort(request.scope)

    def _count(self, request: "_Request", reason: str) -> None:
        self._metrics.errors.labels(request.server, request.question.model, reason).inc()

    def _told(self, request: "_Request") -> None:
        """Record the metrics of a finished request."""
        took = _now() - request.began
        model = request.question.model
        self._metrics.latency.labels(request.server, model, str(request.status)).observe(took / SECOND)
        if self._front.objective and took > self._front.objective:
            self._metrics.late.labels(model).inc()


class _Request:
    """State of one request."""

    def __init__(self, scope: Scope, send: Send, stalled: float) -> None:
        self.scope = scope
        self.client = client_of(scope)
        self.send = send
        self.began = _now()
        self.question: Question
        self.model = ""
        """The model that the client named."""
        self.models: list[str] = []
        """The model to ask, and its fallbacks."""
        self.has_fallback = False
        self.own: Embeddings | None = None
        self.asker = ANYBODY
        self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.target = ""
        self.due = self.first_by = 0
        self.is_ours = True  # the timeout is the front's, not the client's
        self.timer: asyncio.Timeout
        self.server = ""
        self.status = 0
        self.is_begun = self.is_over = self.is_gone = self.is_stream = self.is_deferred = False
        self.held = 0  # nanoseconds spent waiting for the client to read
        self.refused_by: list[Member] = []  # a failure only if another upstream succeeds
        self.lost = 0  # number of losses of upstreams with this prompt
        self.lost_by = ""  # the latest upstream lost with this request
        self._stalled = stalled
        self.end = b""
        """Last bytes of the answer."""
        self._events = 0

    def end_within(self, usual: int, whole: int, first: int) -> None:
        """Set the deadlines: the usual timeout, or the client's timeouts for the `whole` answer and its `first` byte if
        shorter. In nanoseconds; 0 means that the client set none.
        """
        timeout = min(usual, whole or usual)
        self.first_by = self.began + min(timeout, first or timeout)
        self.due = self.began + timeout
        self.is_ours = timeout == usual and self.first_by == self.due

    def on_loss(self) -> None:
        """Count a lost upstream. None may follow if it perhaps keeps something of the request."""
        self.lost += LOSSES if self.question.is_kept else 1

    @property
    def wrote(self) -> float:
        """Number of tokens of the answer, or of its events; 0 if it was in one piece and does not tell."""
        return float(told_tokens(self.end, "completion") or self._events)

    @property
    def sent(self) -> bytes:
        """The body for an upstream."""
        return self.body if self.question.model == self.model else naming(self.body, self.question.model)

    @property
    def renamed(self) -> list[tuple[bytes, bytes]]:
        """The header that names the model, if it is not the one that the client named."""
        model = self.question.model
        return [] if model == self.model else [(b"x-poise-model", model.encode("utf-8", "replace"))]

    @property
    def is_between_events(self) -> bool:
        return not self.end or self.end.endswith(END_OF_EVENT)

    async def pass_on(self, chunk: bytes, more: bool = True) -> None:
        """Send a chunk. Raises `Stalled` if the client does not read in time."""
        self.end = (self.end + chunk)[-USAGE_WITHIN:]
        self._events += chunk.count(b"data:") if self.is_stream else 0
        began = _now()
        try:
            async with asyncio.timeout(self._stalled):
                await self.send({"type": "http.response.body", "body": chunk, "more_body": more})
        except TimeoutError:
            raise Stalled from None
        finally:
            self.held += _now() - began


def check_front(front: Front, environment: Mapping[str, str]) -> None:
    """Raise `InputError` for a variable that is not set, or missing credentials of a cluster."""
    _keys(front, environment)
    for place, discovery in enumerate(front.discover):
        reported.check(discovery, f"discover[{place}].kubernetes")


def _keys(front: Front, given: Mapping[str, str]) -> dict[str, str]:
    """Return the API keys by the variables that have them. Raises `SpecError` for a variable that is not set."""
    named = [(f"upstreams[{place}]", told.key_from) for place, told in enumerate(front.upstreams)]
    named += [(f"discover[{place}]", one.like.key_from) for place, one in enumerate(front.discover)]
    named.append(("peers", front.peers.key_from))
    for at, variable in named:
        if variable and not given.get(variable):
            hint = f"export {variable}=..., where the gateway starts"
            raise SpecError("the variable with the key is not set", field=f"{at}.key_from", need=variable, hint=hint)
    return {variable: given[variable] for _, variable in named if variable}


def _is_final(response: Response) -> bool:
    """Whether the upstream asks for no retries."""
    return response.headers.get(NOT_AGAIN[0]) == NOT_AGAIN[1]


def _as_another(held: int) -> str:
    return f", as another was before with this prompt; {_for_how_long(held)}" if held else ""


def _for_how_long(held: int) -> str:
    return f"it is refused for {format_duration(held)}"


def _asker(scope: Scope) -> Asker:
    """Read the tenant and the cache settings from the headers."""
    asker = Asker(client=client_of(scope))
    try:
        for name, value in scope["headers"]:
            asker = asker.saying(name, value)
    except SpecError as error:
        what = f"The header {error.record.field}: {error.record.message}"
        raise Refused(400, what, code="invalid_header", param=error.record.field.lower()) from None
    return asker


def _methods(path: str) -> tuple[str, ...]:
    if path in ASKED:
        return ASK
    if path == MODELS or path.startswith(f"{MODELS}/"):
        return READ
    known = ", ".join((*ASKED, MODELS))
    raise Refused(404, f"There is no {path[:80]} here. There are {known}", code="not_found")


def _now() -> int:
    return time.monotonic_ns()


def _loop_time(instant: int) -> float:
    """Convert a `_now` instant to the event loop's clock."""
    return asyncio.get_running_loop().time() + (instant - _now()) / SECOND


_encode = msgspec.json.encode
