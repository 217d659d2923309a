"""Serves a model in a replica request by request, several at once: `async def predict`, or a generator.

A coroutine's result is one answer. Each value that a generator yields is a part of an answer that streams: bytes as
they are, other values as events (`text/event-stream`) with JSON. Coroutines and asynchronous generators share one event
loop in a thread of its own; a plain generator runs in a thread for each request. When a client disconnects, its
coroutine is cancelled, and its generator closed after the current value.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

from poise.decoding import json_decoder
from poise_serve.replica import JSON, Line, Model, Worker, is_out_of_memory, told_of
from poise_serve.wire import EVENTS, Answer, Answers, Broken, Drop, ErrorBody, FromReplica, Part, Work, framed

_failed = json_decoder(ErrorBody).decode


class Calls:
    """Answers up to `at_once` requests at a time, for a worker."""

    def __init__(self, worker: Worker, model: Model, at_once: int) -> None:
        self._worker, self._model = worker, model
        self._loop = asyncio.new_event_loop()
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="predict")
        self._running: dict[tuple[Line, int], Future[None]] = {}  # another gateway numbers its requests anew
        self._dropped: set[tuple[Line, int]] = set()
        self._sending = threading.Lock()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def answer(self, line: Line) -> None:
        """Start the requests of this connection as they come, until it closes."""
        worker = self._worker
        while (message := worker.next_of(line.channel)) is not None:
            if isinstance(message, Drop):
                self._drop(line, message.number)
            elif not worker.stopping:  # the gateway sends it to another replica
                self._begin(message, line)
            worker.busy = bool(self._running)
        for of, number in list(self._running):
            self._drop(of, number)  # their clients have gone with the gateway

    def warm_up(self) -> None:
        """Serve the model's example once. Raises the model's own errors."""
        example = getattr(self._model.made, "example", None)
        if callable(example):
            made = self._model.call(example())
            if isinstance(made, Iterator):
                for _ in made:
                    pass
            else:
                asyncio.run_coroutine_threadsafe(_exhaust(made), self._loop).result()

    def close(self) -> None:
        """End the threads, which have no more requests."""
        self._threads.shutdown(wait=False)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _begin(self, work: Work, line: Line) -> None:
        began = time.perf_counter_ns()
        items, refused = self._model.inputs(work.bodies)
        if refused:
            self._end(work.number, began, line, Answer(refused[0].status, refused[0].kind, bytes(refused[0].body)))
            return
        try:
            made = self._model.call(items[0])
        except BaseException as error:
            self._fail(work.number, error, line)
            return
        running = (
            self._threads.submit(self._iterate, work.number, made, began, line)
            if isinstance(made, Iterator)
            else asyncio.run_coroutine_threadsafe(self._await(work.number, made, began, line), self._loop)
        )
        self._running[line, work.number] = running
        running.add_done_callback(lambda ended: self._ended(work.number, ended, line))

    def _ended(self, number: int, ended: "Future[None]", line: Line) -> None:
        if ended.cancelled():
            has_gone = (line, number) in self._dropped  # otherwise the model has cancelled itself
            self._fail(number, InterruptedError("its client has gone") if has_gone else CancelledError(), line)
        self._running.pop((line, number), None)
        self._dropped.discard((line, number))
        self._worker.busy = bool(self._running)
        if self._worker.stopping and not self._running:
            self._worker.end()  # it waits for more requests

    def _drop(self, line: Line, number: int) -> None:
        running = self._running.get((line, number))
        if running is not None:
            self._dropped.add((line, number))
            running.cancel()

    # --- kinds of models ---------------------------------------------------------------------------------------------

    async def _await(self, number: int, made: Any, began: int, line: Line) -> None:
        try:
            if isinstance(made, AsyncIterator):
                kind = ""
                async for value in made:
                    kind = self._part(number, value, kind, line)
                    await asyncio.sleep(0)  # the turn of others, also if the generator never waits
                self._end(number, began, line, Answer(200, kind or EVENTS, b""))
            else:
                told = self._model.answer(await made)
                self._end(number, began, line, Answer(told.status, told.kind, bytes(told.body)))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(number, error, line)

    def _iterate(self, number: int, made: Iterator[Any], began: int, line: Line) -> None:
        kind = ""
        try:
            for value in made:
                if (line, number) in self._dropped:
                    raise InterruptedError("its client has gone")
                kind = self._part(number, value, kind, line)
            self._end(number, began, line, Answer(200, kind or EVENTS, b""))
        except BaseException as error:
            self._fail(number, error, line)
        finally:
            close = getattr(made, "close", None)
            if callable(close):
                close()

    # --- messages ----------------------------------------------------------------------------------------------------

    def _part(self, number: int, value: Any, kind: str, line: Line) -> str:
        """Send a part of an answer, and return its media type. Raises `ValueError` if it differs from that before."""
        told = self._model.answer(value)
        body = bytes(told.body)
        if told.status != 200:
            raise ValueError(_failed(body).error.message)
        now = EVENTS if told.kind == JSON else told.kind
        if kind and now != kind:
            raise ValueError(f"a value is {now}, and those before it were {kind}")
        self._send(Part(number, now, b"data: %b\n\n" % body if now == EVENTS else body), line)
        return now

    def _end(self, number: int, began: int, line: Line, answer: Answer) -> None:
        self._send(Answers(number, time.perf_counter_ns() - began, 1, [answer]), line)

    def _fail(self, number: int, error: BaseException, line: Line) -> None:
        self._send(Broken(number, "memory" if is_out_of_memory(error) else "raised", told_of(error)), line)

    def _send(self, message: FromReplica, line: Line) -> None:
        with self._sending, contextlib.suppress(OSError):  # the gateway has gone
            line.channel.sendall(framed(message))


async def _exhaust(made: Any) -> None:
    if isinstance(made, AsyncIterator):
        async for _ in made:
            pass
    else:
        await made


__all__ = ["Calls"]
