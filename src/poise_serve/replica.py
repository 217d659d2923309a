"""`python -m poise_serve.replica app.py:Model`: one process that serves requests with the user's model.

The model is a class with

* `load(self)` (optional): called once, before any request;
* `predict(self, batch)`: takes a list of inputs and returns a list of the same length, in the same order. Or `async def
  predict(self, item)`, or `predict(self, item)` with `yield`, or both: each request by itself, several at once; values
  that are yielded are parts of an answer that streams (`poise_serve.calls`);
* `decode(self, body)` (optional): makes an input from the body of a request, instead of JSON; raises ValueError for an
  invalid body. With `body: memoryview` a large body is not copied, and is valid until the batch is answered;
* `encode(self, result)` (optional): returns bytes or a view of them, text, or a value for JSON, instead of the result
  itself. JSON has no NaN and no infinity: a result with one of them is an error for its request;
* `follow(self)`: only for a replica of several processes (`workers:`). Ranks from 1 on call it after `load`, and take
  part in the work of rank 0 until that ends (`POISE_RANK`, `POISE_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`);
* `example(self)` (optional): returns an input to measure batch sizes with at the start, so that the model is warm and
  its speed known before the first request.

Annotate `batch` (`batch: list[Digits]`, of any type that msgspec decodes: records, lists of numbers, strings) to refuse
inputs of another type with 422 and the path of the mistake, before the model sees them.

The replica connects to the gateway's socket (`POISE_SERVICE_SOCKET`), or to its address on another machine
(`POISE_SERVICE_ADDRESS`), loads the model, and serves one batch at a time. It reconnects after a disconnect, because
another gateway takes over from one that was killed. It exits if none does, even during a batch, or on SIGTERM, after
answering the current batch or requests.
"""

import contextlib
import gc
import importlib
import importlib.util
import inspect
import os
import select
import signal
import socket
import sys
import threading
import time
import types
import typing
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from poise.config import Address
from poise.decoding import json_decoder
from poise.drivers import sockets
from poise.drivers.reach import trusting
from poise.errors import InputError, PoiseError
from poise.model.traces import TRACEPARENT
from poise_serve.room import Room
from poise_serve.shared import Body, Reader, Writer
from poise_serve.wire import (
    EVENTS,
    LENGTH,
    MOST_BODIES,
    Answer,
    Answers,
    Broken,
    Enter,
    Forms,
    FromReplica,
    Hello,
    ToReplica,
    Work,
    decode_to_replica,
    error_body,
    framed,
)

TRIED = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Batch sizes that are measured with the example when a replica starts …"""

TRY_SECONDS = 3.0
"""… until that has taken this long."""

TRY_TIMES = 3

TAKEN_OVER_WITHIN = 5.0
"""Seconds to wait for another gateway to take over after a disconnect …"""

DIAL_EVERY = 0.05
"""… and between two attempts to connect."""

JSON = "application/json"
BYTES = "application/octet-stream"
TEXT = "text/plain; charset=utf-8"


_whole = json_decoder(msgspec.Raw).decode


class Result(NamedTuple):
    """An answer that has not been sent yet."""

    status: int
    kind: str
    body: Body


class Model:
    """Wrapper of the user's model that checks its inputs and results."""

    def __init__(self, made: Any) -> None:
        self.made = made
        predict = _routine(getattr(made, "predict", None))
        if not callable(predict):
            raise InputError(
                "the model has no method `predict`",
                field=type(made).__name__,
                hint="def predict(self, batch: list) -> list: ...",
            )
        for name in ("load", "example", "decode", "encode"):
            _check_plain(name, getattr(made, name, None))
        self.call: Callable[..., Any] = predict
        """The model's own `predict`."""
        self.is_called = _kind_of(predict) != ""
        """Whether it takes requests one by one."""
        self.streams = "generator" in _kind_of(predict)
        decode: Callable[..., Any] | None = getattr(made, "decode", None)
        first = _first(predict)
        self._takes = (first if self.is_called else _inner(first)) if decode is None else None
        self._decode: Callable[[Body], Any] = json_decoder(self._takes).decode if decode is None else _reading(decode)
        self._encode: Callable[[Any], Any] | None = getattr(made, "encode", None)
        self.room = Room()

    def load(self) -> None:
        """Call the model's `load`, if it has one."""
        if callable(load := getattr(self.made, "load", None)):
            load()
            self.room = Room()

    def inputs(self, bodies: Sequence[Body]) -> tuple[list[Any], dict[int, Result]]:
        """Decode the bodies. Returns the inputs, and error results by position for bodies that cannot be decoded."""
        items: list[Any] = []
        refused: dict[int, Result] = {}
        for position, body in enumerate(bodies):
            try:
                items.append(self._decode(body))
            except msgspec.ValidationError as error:
                refused[position] = _mistaken(body, error)
            except (ValueError, RecursionError, msgspec.DecodeError) as error:
                refused[position] = failure(400, _text_of(error), "the body cannot be read")
            except BaseException as error:  # including `sys.exit()`, as in `predict`
                refused[position] = failure(500, told_of(error), "decode raised")
        return items, refused

    def predict(self, items: list[Any]) -> Sequence[Any]:
        """Return one result per item. Raises the model's own errors."""
        with self.room.taken_by(len(items)):
            results: Any = self.call(items)
        if isinstance(results, str | bytes | dict | set) or not hasattr(results, "__len__"):
            raise TypeError(f"predict gave {type(results).__name__}, not a list of {len(items)} results")
        if len(results) != len(items):
            raise ValueError(f"predict gave {len(results)} results for {len(items)} inputs")
        made: Sequence[Any] = results
        return made

    def forms(self, service: str) -> Forms:
        """Schema of the inputs and results from the annotations; any type without them. Type names are prefixed with
        the service's name.
        """
        encoded = self._encode is not None
        given = _told_type(self._encode or self.call)
        given = given if encoded or self.is_called else _inner(given)
        kinds: Sequence[str] = (JSON,)
        if self.streams:
            given, kinds = Any, (EVENTS, BYTES)
        elif given in (bytes, bytearray, memoryview):
            kinds = (BYTES,)
        elif given is str and encoded:
            kinds = (TEXT,)
        elif given is Any:
            kinds = (JSON, BYTES, TEXT) if encoded else (JSON, BYTES)
        (taken, gives), parts = msgspec.json.schema_components(
            [Any if self._takes is None else self._takes, given],
            schema_hook=lambda kind: {"title": kind.__name__},
            ref_template=f"#/components/schemas/{service}.{{name}}",
        )
        return Forms(
            takes={BYTES if self._takes is None else JSON: taken},
            gives={kind: gives if kind == JSON else {} for kind in kinds},
            parts={f"{service}.{name}": schema for name, schema in parts.items()},
        )

    def answer(self, result: Any) -> Result:
        if isinstance(result, Exception):
            return failure(500, _text_of(result), type(result).__name__)
        try:
            told = self._encode(result) if self._encode is not None else result
            if isinstance(told, bytes | bytearray | memoryview):
                view = memoryview(told)
                flat = view.cast("B") if view.c_contiguous and view.nbytes else view.tobytes()
                return Result(200, BYTES, flat)
            if isinstance(told, str) and self._encode is not None:
                return Result(200, TEXT, told.encode())
            body = msgspec.json.encode(told, enc_hook=_plain)
            if b"null" in body and (place := _not_finite(msgspec.to_builtins(told, enc_hook=_plain))):
                raise ValueError(f"{place}, and JSON has no such number")
            return Result(200, JSON, body)
        except BaseException as error:  # including `sys.exit()`, as in `predict`
            return failure(500, _text_of(error), "the result cannot be told")


def _check_plain(name: str, method: Any) -> None:
    """Raises `InputError` for a coroutine function or a generator."""
    if kind := _kind_of(method):
        raise InputError(
            f"`{name}` is {kind}, and its result is needed when it returns",
            field=name,
            need="a plain method",
            hint=f"def {name}(self, ...): ..., with `asyncio.run` inside for what must be awaited",
        )


def _kind_of(method: Any) -> str:
    """Return the kind of a function that is not plain; empty for a plain one."""
    return next((kind for kind, is_one in _NOT_PLAIN.items() if is_one(_routine(method))), "")


def _routine(method: Any) -> Any:
    """Return the function to call: of an object, that of its class."""
    return method if inspect.isroutine(method) else getattr(method, "__call__", None)  # noqa: B004 of an object


_NOT_PLAIN: dict[str, Callable[[Any], bool]] = {
    "a coroutine function": inspect.iscoroutinefunction,
    "an async generator": inspect.isasyncgenfunction,
    "a generator": inspect.isgeneratorfunction,
}


def failure(status: int, message: str, what: str) -> Result:
    """Make an error result, in the common form of all errors."""
    message = _sayable(f"{what}: {message}")
    return Result(status, JSON, error_body(status, message))


def _mistaken(body: Body, error: msgspec.ValidationError) -> Result:
    """Distinguish invalid JSON (400) from a wrong type (422): msgspec stops at the first value of a wrong type."""
    try:
        _whole(body)
    except (ValueError, RecursionError, msgspec.DecodeError) as broken:
        return failure(400, str(broken), "the body cannot be read")
    return failure(422, str(error), "the input is not what the model takes")


def told_of(error: BaseException) -> str:
    """Describe an error of the model."""
    return _sayable(f"{type(error).__name__}: {_text_of(error)}")


def _text_of(error: BaseException) -> str:
    """Return the text of an error, which may be of a class of the model."""
    try:
        return str(error)
    except Exception as other:
        return f"it has no text: {type(other).__name__}"


def _sayable(text: str) -> str:
    """Replace lone surrogates, which file names may contain and which cannot be encoded."""
    return text.encode(errors="replace").decode()


def load_model(target: str, alias: str = "") -> Model:
    """Load the model of `app.py:Model` or `package.module:Model`. `alias`: name of the module of a file; without it,
    that of the file. Raises InputError naming what was not found.
    """
    place, _, name = target.partition(":")
    if not name:
        raise InputError("the name of the class is missing", field=target, hint=f"{target}:Model")
    try:
        module = _from_file(Path(place), alias) if place.endswith(".py") else importlib.import_module(place)
    except FileNotFoundError as error:
        raise InputError("no such file", field=place) from error
    except ModuleNotFoundError as error:
        raise InputError(f"it cannot be imported: {error}", field=place) from error
    made = getattr(module, name, None)
    if made is None:
        known = [key for key, of in vars(module).items() if isinstance(of, type) and of.__module__ == module.__name__]
        raise InputError(f"it has no `{name}`", field=place, have=", ".join(known) or "no class")
    model = Model(made() if isinstance(made, type) else made)
    model.load()
    return model


def _from_file(path: Path, alias: str) -> types.ModuleType:
    path = path.resolve(strict=True)
    name = alias or path.stem
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError("it is not a Python file", field=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _reading(decode: Callable[..., Any]) -> Callable[[Body], Any]:
    """Wrap a model's `decode` to get bytes, or a view if annotated with `memoryview`, which avoids the copy of a large
    body.
    """
    hints = typing.get_type_hints(decode)
    hints.pop("return", None)
    if memoryview in hints.values():
        return lambda body: decode(memoryview(body))
    return lambda body: decode(bytes(body))


def _first(predict: Callable[..., Any]) -> Any:
    """Return the annotated type of the first parameter, or Any."""
    hints = typing.get_type_hints(predict, include_extras=True)
    hints.pop("return", None)
    return next(iter(hints.values()), Any)


def _told_type(of: Callable[..., Any]) -> Any:
    """Return the annotated return type, or Any if it is missing or unsupported: it is used only in the schema."""
    try:
        given = typing.get_type_hints(of, include_extras=True).get("return", Any)
        msgspec.json.schema(given, schema_hook=lambda kind: {"title": kind.__name__})
    except Exception:
        return Any
    return given


def _inner(batch: Any) -> Any:
    """Return the item type of an annotated list, or Any."""
    if typing.get_origin(batch) is typing.Annotated:
        batch = typing.get_args(batch)[0]
    match typing.get_args(batch):
        case (item,) | (item, types.EllipsisType()):
            return item
    return Any


def _plain(value: Any) -> Any:
    """Convert arrays and scalars of NumPy, PyTorch and similar libraries."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} is nothing that JSON can say")


def _not_finite(value: Any, place: str = "$") -> str:
    """Describe the first NaN or infinity, which JSON writes as `null`, with its path; empty if there is none."""
    if isinstance(value, float):
        return "" if isfinite(value) else f"`{place}` is {value}"
    if isinstance(value, dict):
        inner = ((each, f"{place}.{key}") for key, each in value.items())
    elif isinstance(value, list | tuple):
        inner = ((each, f"{place}[{at}]") for at, each in enumerate(value))
    else:
        return ""
    return next(filter(None, (_not_finite(each, where) for each, where in inner)), "")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the machine or a device is out of memory. PyTorch and other libraries have their own error classes."""
    return isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__


class Stopping(BaseException):
    """SIGTERM arrived while no batch was being served."""


class Line:
    """A connection to the gateway, and the shared buffers that it sent."""

    def __init__(self, channel: socket.socket, reader: Reader, writer: Writer) -> None:
        self.channel, self.reader, self.writer = channel, reader, writer
        os.register_at_fork(after_in_child=channel.close)  # otherwise the model's child processes keep it open

    def until_hung_up(self) -> None:
        """Wait until the gateway hangs up."""
        watch = select.poll()
        watch.register(self.channel, select.POLLRDHUP)
        watch.poll()

    def close(self) -> None:
        self.channel.close()
        self.reader.close()
        self.writer.close()


def _nothing() -> None:
    """Do nothing."""


def read_frame(channel: socket.socket, begin: Callable[[], None] = _nothing) -> bytearray | None:
    """Wait for the next message; None if the gateway has disconnected. `begin` is called once a part has arrived."""
    head = _read(channel, LENGTH.size, begin)
    return None if head is None else _read(channel, LENGTH.unpack(head)[0], begin)


def _read(channel: socket.socket, count: int, begin: Callable[[], None]) -> bytearray | None:
    data = bytearray(count)
    view, got = memoryview(data), 0
    while got < count:
        more = channel.recv_into(view[got:])
        if not more:
            return None
        got += more
        begin()
    return data


class Worker:
    """Answers batches over one connection at a time: when a gateway is killed, another takes over."""

    model: Model

    def __init__(self, line: Line, *, is_alone: bool = True) -> None:
        """`is_alone`: whether the process has no other worker."""
        self.line = line
        self._is_alone = is_alone
        self.answering: Callable[[Line], None] = self.answer
        """Answers the requests of a connection until it closes."""
        self.closing: Callable[[], None] = _nothing
        """Ends the threads of the model's requests."""
        self._anew = threading.Event()
        self.busy = False
        self.stopping = False

    def go_on_with(self, line: Line) -> None:
        """Switch to this connection. Called from another thread."""
        self.line = line
        self._anew.set()

    def run(self, model: Model, hello: Hello) -> None:
        """Serve batches until SIGTERM, or `end`."""
        self.model = model
        if self._is_alone:
            signal.signal(signal.SIGTERM, self._on_term)
            os.register_at_fork(after_in_child=end_on_term)
        with contextlib.suppress(Stopping):
            while not self.stopping:
                line = self.line
                with contextlib.suppress(OSError):  # whoever asked has gone
                    line.channel.sendall(framed(hello))
                    self.answering(line)
                self.busy = False
                while self.line is line and not self.stopping:
                    self._anew.wait()
                    self._anew.clear()
                line.close()

    def answer(self, line: Line) -> None:
        """Answer the batches of this connection until it closes."""
        while not self.stopping and (work := self.next_of(line.channel)) is not None:
            if isinstance(work, Work):
                line.channel.sendall(framed(self._work(work, line)))
            self.busy = False

    def end(self) -> None:
        """Stop after the current batch or requests. Called from another thread."""
        self.stopping = True
        if not self.busy:
            with contextlib.suppress(OSError):  # also of TLS, which can still send
                socket.socket.shutdown(self.line.channel, socket.SHUT_RD)
        self._anew.set()

    def _on_term(self, *_: object) -> None:
        self.stopping = True
        if not self.busy:
            raise Stopping

    def next_of(self, channel: socket.socket) -> ToReplica | None:
        """Wait for the next message; None if the gateway has gone."""
        data = read_frame(channel, self._begin)
        return None if data is None else decode_to_replica.decode(data)

    def _begin(self) -> None:
        self.busy = True

    def forget(self) -> None:
        """Drop the model, after `run`."""
        self.closing()
        self.closing, self.answering = _nothing, self.answer
        del self.model

    def _work(self, work: Work, line: Line) -> FromReplica:
        began = time.perf_counter_ns()
        bodies: list[Body] = list(work.bodies)
        for place in work.places:
            bodies[place.number] = line.reader.at(place)
        items, refused = self.model.inputs(bodies)
        given = len(items) + max(0, work.padded - len(work.bodies)) if items else 0
        try:
            with _in_trace(work.traceparent if self._is_alone else ""):
                results = self.model.predict(items + items[-1:] * (given - len(items))) if items else []
        except BaseException as error:  # including `sys.exit()` in the model and a panic in a Rust library
            why: typing.Literal["raised", "memory"] = "memory" if is_out_of_memory(error) else "raised"
            return Broken(work.number, why, told_of(error))
        answered = iter(results)
        answers = [
            refused[position] if position in refused else self.model.answer(next(answered))
            for position in range(len(work.bodies))
        ]
        took = time.perf_counter_ns() - began
        if sum(len(one.body) for one in answers) > MOST_BODIES:
            if len(answers) > 1:  # the gateway retries in smaller batches
                return Broken(work.number, "memory", f"the results have more than {MOST_BODIES} bytes together")
            what = f"it has {len(answers[0].body)} bytes, and {MOST_BODIES} are the most"
            answers = [failure(500, what, "the result cannot be told")]
        try:
            sent, places = line.writer.place([one.body for one in answers], beside=work.ahead)
        except OSError as error:
            return Broken(work.number, "memory", f"no memory for the results: {error.strerror}")
        told = [Answer(one.status, one.kind, body) for one, body in zip(answers, sent, strict=True)]
        return Answers(work.number, took, given, told, places, self.model.room.items)


@contextlib.contextmanager
def _in_trace(traceparent: str) -> Iterator[None]:
    """Set the span context of a traced batch in the environment while it is served."""
    before = os.environ.get(TRACEPARENT)
    if not traceparent:
        yield
        return
    os.environ[TRACEPARENT] = traceparent
    try:
        yield
    finally:
        if before is None:
            del os.environ[TRACEPARENT]
        else:
            os.environ[TRACEPARENT] = before


def end_on_term() -> None:
    """Restore the default SIGTERM action in forked children: they have no batch to finish before exiting."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def tried(model: Model, largest: int) -> list[tuple[int, float]]:
    """Measure batches of the model's example, of each size up to the largest that fits in memory. Returns pairs of size
    and the minimum of a few times, in nanoseconds.
    """
    example = getattr(model.made, "example", None)
    if not callable(example):
        return []
    item = example()
    known: list[tuple[int, float]] = []
    model.predict([item])  # warm-up: the first call is the slowest
    began = time.perf_counter()
    for size in TRIED:
        if size > min(largest, model.room.items or largest):
            break
        best = 0
        for _ in range(TRY_TIMES):
            start = time.perf_counter_ns()
            try:
                model.predict([item] * size)
            except Exception as error:
                if size > 1 and is_out_of_memory(error):
                    return known
                raise
            took = time.perf_counter_ns() - start
            best = min(best or took, took)
        known.append((size, float(best)))
        if time.perf_counter() - began > TRY_SECONDS:
            break
    return known


class Gateway(NamedTuple):
    """Location of the gateway, and the message that opens a connection to a gateway on another machine."""

    path: Path
    address: str
    enter: Enter

    @property
    def is_beyond(self) -> bool:
        """Whether it is on another machine."""
        return bool(self.address) and not self.path.exists()


def dial(gateway: Gateway) -> Line:
    """Connect to the gateway. It starts before its replicas, so a failure to connect means that it has exited."""
    if gateway.is_beyond:
        return Line(dial_beyond(gateway), Reader(None), Writer(None))
    path = gateway.path
    try:
        channel = sockets.connect(path, None)
        _, buffers, _, _ = socket.recv_fds(channel, 1, 2)
    except OSError as error:
        raise InputError(f"the gateway is gone: {error.strerror}", field=str(path)) from None
    if len(buffers) < 2:
        channel.close()
        raise InputError("the gateway has disconnected", field=str(path))
    return Line(channel, Reader(buffers[0]), Writer(buffers[1]))


def dial_beyond(gateway: Gateway) -> socket.socket:
    """Connect with TLS. All data goes over the connection, because machines share no buffers."""
    address = Address.parse(gateway.address, "POISE_SERVICE_ADDRESS")
    try:
        plain = socket.create_connection((address.host, address.port), TAKEN_OVER_WITHIN)
        sockets.notice_loss(plain, taken=True)
        channel = trusting(address).wrap_socket(plain, server_hostname=address.host)
        channel.settimeout(None)
        channel.sendall(framed(gateway.enter))
    except OSError as error:
        raise InputError(f"the gateway is gone: {error.strerror}", field=str(address)) from None
    return channel


T = TypeVar("T")


def dial_in_time(gateway: Gateway) -> Line:
    """Connect to the gateway, or to its successor if it was just killed. Raises `InputError` if there is none."""
    return in_time(lambda: dial(gateway))


def in_time(connect: Callable[[], T]) -> T:
    """Return a connection to a gateway, or to its successor. Raises the `InputError` of `connect` if there is none."""
    until = time.monotonic() + TAKEN_OVER_WITHIN
    while True:
        try:
            return connect()
        except InputError:
            if time.monotonic() > until:
                raise
        time.sleep(DIAL_EVERY)


def watch(gateway: Gateway, worker: Worker) -> None:
    """Reconnect whenever the gateway disconnects, even during work, until the worker ends. Return if no gateway takes
    over.
    """
    while True:
        worker.line.until_hung_up()
        time.sleep(DIAL_EVERY)
        if worker.stopping:
            return
        try:
            line = dial_in_time(gateway)
        except InputError:
            return
        worker.go_on_with(line)


def _watch_to_the_end(gateway: Gateway, worker: Worker) -> None:
    """Exit if no gateway takes over, because nobody then waits for the results."""
    watch(gateway, worker)
    if not worker.stopping:
        os._exit(0)


def _follow(target: str) -> int:
    """Run a rank of a replica that is not the first."""
    try:
        model = load_model(target)
        follow = getattr(model.made, "follow", None)
        if not callable(follow):
            what = "a replica of several processes needs the method `follow`, which ranks from 1 on call"
            raise InputError(what, field=target, hint="def follow(self): ...")
    except PoiseError as error:
        return say(error)
    follow()
    return 0


def say(error: PoiseError) -> int:
    told = error.record
    have, hint = f"; there is {told.have}" if told.have else "", f"\nhint: {told.hint}" if told.hint else ""
    sys.stderr.write(f"poise: {told.field}: {told.message}{have}{hint}\n")
    return 1


class Settings(NamedTuple):
    """Settings of a service that its model needs. `whole`: the field that needs whole answers, if any."""

    service: str
    batch: int
    at_once: int
    whole: str


def prepared(worker: Worker, model: Model, target: str, name: str, settings: Settings) -> Hello:
    """Let the worker answer with this model, and return its message to the gateway. Raises `InputError` if the service
    cannot use the model.
    """
    if model.streams and settings.whole:
        what = f"`predict` yields parts, but a service with `{settings.whole}` needs whole answers"
        raise InputError(what, field=target)
    hello = Hello(name, forms=model.forms(settings.service))
    if model.is_called:
        from poise_serve.calls import Calls

        calls = Calls(worker, model, settings.at_once)
        calls.warm_up()
        worker.answering, worker.closing = calls.answer, calls.close
        return msgspec.structs.replace(hello, room=1, at_once=settings.at_once)
    known = tried(model, settings.batch)
    return msgspec.structs.replace(hello, known=known, room=model.room.items)


def gateway_of(environment: MutableMapping[str, str]) -> Gateway:
    """Return the gateway of this process, and remove the key from the environment."""
    path, task = environment["POISE_SERVICE_SOCKET"], environment.get("POISE_TASK", str(os.getpid()))
    epoch, key = int(environment.get("POISE_EPOCH", 0)), environment.pop("POISE_WORKER_KEY", "")
    return Gateway(Path(path), environment.get("POISE_SERVICE_ADDRESS", ""), Enter(path, task, epoch, key))


def main() -> int:
    """Run the replica. Returns 0 after SIGTERM, 1 if the model cannot be loaded."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m poise_serve.replica app.py:Model\n")
        return 1
    if os.environ.get("POISE_RANK", "0") != "0":
        return _follow(sys.argv[1])
    gateway = gateway_of(os.environ)
    settings = Settings(
        os.environ["POISE_SERVICE_NAME"],
        int(os.environ["POISE_SERVICE_BATCH"]),
        int(os.environ["POISE_SERVICE_AT_ONCE"]),
        os.environ.get("POISE_SERVICE_WHOLE", ""),
    )
    try:
        worker = Worker(dial_in_time(gateway))
        threading.Thread(target=_watch_to_the_end, args=(gateway, worker), daemon=True).start()
        model = load_model(sys.argv[1])
        hello = prepared(worker, model, sys.argv[1], gateway.enter.name, settings)
    except PoiseError as error:
        return say(error)
    gc.collect()
    gc.freeze()  # a full collection of the objects of a large library takes longer than a batch
    worker.run(model, hello)
    return 0


if __name__ == "__main__":
    from poise_serve import replica  # not `__main__`, so that its classes are those that other modules import

    sys.exit(replica.main())
