"""Asynchronous SGD: a parameter server has the weights, and each worker goes at its own pace.

    with Asynchronous(model, optimizer, samples=len(inputs), batch=32, epochs=3) as run:
        for places in run:                                   # indices of samples
            run.step(loss_fn(model(inputs[places]), targets[places]))

Worker 0 is the server: its loop has no turns, it applies the others' gradients with its optimizer. At the end all have
its weights. Nobody waits for a slow worker but as far as the bound of staleness demands (`poise.train.handout`, which
also says why each sample is taken once in a pass). Each piece of `batch` samples is a step of its own. Staleness acts
like momentum (Mitliagkas et al., "Asynchrony begets momentum", 2016): have less in the optimizer than otherwise.

What a worker and the server say to each other goes through a TCP connection of their own, so that the end of a worker
is the end of its connection and of nothing else: a length, a few numbers as msgpack, then a tensor as it is in memory,
in fp32. The first words are a secret that the gang was told by its process group.
"""

import os
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from poise.decoding import msgpack_decoder
from poise.drivers.heartbeat import step as beat
from poise.errors import GangBroken, Misused
from poise.train import shards, state
from poise.train.gang import Gang
from poise.train.handout import Pieces

CONNECT_SECONDS = 60.0
"""How long a worker waits for the server, and the server for its first worker."""

_HEAD = struct.Struct("!IQ")


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who calls."""

    secret: bytes
    rank: int


class Given(msgspec.Struct, frozen=True, array_like=True):
    """What to do next, with the weights: a piece, or `turn` -1: all is done."""

    turn: int
    start: int = 0
    stop: int = 0


class Asynchronous:
    """Training of `model` on `samples` samples, `epochs` passes in the orders of `seed`. `staleness` bounds how many
    other gradients may have been applied since the weights that a gradient is of; below the number of workers less two
    it makes some of them wait. `sent` counts bytes that this process gave out, `stale` (at the server) how often which
    staleness came up. Raises Misused, and GangBroken if the server has gone, or all of its workers.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        samples: int,
        batch: int = 32,
        epochs: int = 1,
        seed: int = 0,
        staleness: int = 8,
    ) -> None:
        for name, value, least in (
            ("samples", samples, 1),
            ("batch", batch, 1),
            ("epochs", epochs, 1),
            ("staleness", staleness, 0),
        ):
            if value < least:
                raise Misused(
                    f"`{name}` is out of range", field=name, need=f"{least} or more", have=str(value), hint="32"
                )
        if any(one.is_floating_point() for one in model.buffers()):
            raise Misused(
                "a parameter server has the weights of a model, and not what else it keeps, as batch norms do",
                field="model",
                hint="poise.Session(model, optimizer, data)",
            )
        self.model, self.optimizer = model, optimizer
        self.sent = 0
        self.stale: dict[int, int] = {}
        self.applied = np.zeros((epochs, samples), dtype=np.int64)
        self._samples, self._seed = samples, seed
        self._pieces = Pieces(samples, batch, epochs, staleness)
        self._orders = {turn: shards.order(samples, seed=seed, turn=turn, shuffle=True) for turn in range(epochs)}
        self._parameters = [one for one in model.parameters() if one.requires_grad]
        self._gang = Gang(torch.device("cpu"))
        self._changed = threading.Condition()
        self._workers: set[int] = set()
        self._came = 0
        self._pending: dict[int, bytearray] = {}  # gradients that have come and are not applied
        self._socket: socket.socket | None = None
        self._listening: socket.socket | None = None
        self._stepped = True

    @property
    def rank(self) -> int:
        return self._gang.rank

    def __enter__(self) -> "Asynchronous":
        self._gang.form()
        if not self._gang.together:
            raise Misused("a parameter server needs a worker", need="2 processes or more", have="1", hint="--workers 3")
        told = None
        if not self.rank:
            host = os.environ.get("MASTER_ADDR", "127.0.0.1")
            self._listening = socket.create_server((host, 0), backlog=self._gang.world)
            told = {"host": host, "port": self._listening.getsockname()[1], "secret": secrets.token_bytes(32)}
        found = state.broadcast(told, 0, self.rank, torch.device("cpu"))
        if self._listening is not None:
            threading.Thread(target=self._accept, args=(self._listening, found["secret"]), daemon=True).start()
        else:
            self._socket = socket.create_connection((found["host"], found["port"]), CONNECT_SECONDS)
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._send(self._socket, Hello(found["secret"], self.rank), b"")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for one in (self._socket, self._listening):
            if one is not None:
                one.close()
        self._gang.disband()

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        """Indices of the samples that this worker is to take next."""
        if self._socket is None:
            self._serve()
            return
        try:
            while (given := self._next()).turn >= 0:
                if not self._stepped:
                    raise Misused("samples were taken and no step was made", hint="run.step(loss)")
                self._stepped = False
                yield self._orders[given.turn][given.start : given.stop]
        except (OSError, EOFError) as error:
            raise GangBroken("the parameter server has gone", have=str(error), hint="poise logs JOB") from error

    def step(self, loss: torch.Tensor) -> None:
        """Work the gradient out and send it."""
        line = self._line()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in self._parameters]
        try:
            self._send(line, None, _bytes_of(parts))
        except OSError as error:
            raise GangBroken("the parameter server has gone", have=str(error), hint="poise logs JOB") from error
        self._stepped = True
        beat()

    # --- a worker ----------------------------------------------------------------------------------------------------

    def _line(self) -> socket.socket:
        if self._socket is None:
            raise Misused("the parameter server makes no steps itself", hint="for places in run: run.step(loss)")
        return self._socket

    def _next(self) -> Given:
        words, payload = _receive(self._line())
        _into(self._parameters, payload)
        return msgpack_decoder(Given).decode(words)

    # --- the server --------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Until all samples of all passes have been applied and the workers have heard of it."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._came, CONNECT_SECONDS):
                raise GangBroken("no worker has come to the parameter server", hint="poise logs JOB")
            self._changed.wait_for(lambda: not self._workers)
            if not self._pieces.done:
                raise GangBroken("all workers of the parameter server have gone", hint="poise logs JOB")

    def _accept(self, server: socket.socket, secret: bytes) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return  # it is closed
            threading.Thread(target=self._attend, args=(connection, secret), daemon=True).start()

    def _attend(self, connection: socket.socket, secret: bytes) -> None:
        """All that is said with one worker."""
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                hello = msgpack_decoder(Hello).decode(_receive(connection, most=1024)[0])
            except (OSError, EOFError, msgspec.DecodeError):
                return
            if not secrets.compare_digest(hello.secret, secret):
                return
            with self._changed:
                self._workers.add(hello.rank)
                self._came += 1
                self._changed.notify_all()
            try:
                while self._hand_out(connection, hello.rank):
                    _, gradient = _receive(connection)
                    self._take_in(hello.rank, gradient)
            except (OSError, EOFError):
                pass  # it has gone; what it had out is handed out again
            finally:
                with self._changed:
                    self._pieces.lose(hello.rank)
                    self._pending.pop(hello.rank, None)
                    self._workers.discard(hello.rank)
                    self._apply_what_is_due()
                    self._changed.notify_all()

    def _hand_out(self, connection: socket.socket, worker: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._pieces.done or self._can_take())
            out = self._pieces.take(worker)
            weights = _bytes_of(self._parameters)
        self._send(connection, Given(*out.piece) if out is not None else Given(-1), weights)
        return out is not None

    def _can_take(self) -> bool:
        return not self._pieces.exhausted and len(self._pieces.out) <= self._pieces.most

    def _take_in(self, worker: int, gradient: bytearray) -> None:
        """Returns once it has been applied."""
        with self._changed:
            self._pending[worker] = gradient
            self._pieces.hold(worker)
            self._apply_what_is_due()
            self._changed.wait_for(lambda: worker not in self._pending)

    def _apply_what_is_due(self) -> None:
        while (worker := self._pieces.due()) is not None:
            turn, start, stop = self._pieces.out[worker].piece
            stale = self._pieces.apply(worker)
            self.stale[stale] = self.stale.get(stale, 0) + 1
            self.applied[turn, self._orders[turn][start:stop]] += 1
            for parameter in self._parameters:
                parameter.grad = torch.empty_like(parameter)
            _into([one.grad for one in self._parameters if one.grad is not None], self._pending.pop(worker))
            self.optimizer.step()
            beat()
            self._changed.notify_all()

    def _send(self, connection: socket.socket, words: Any, payload: bytes) -> None:
        text = msgspec.msgpack.encode(words)
        connection.sendall(_HEAD.pack(len(text), len(payload)) + text)
        connection.sendall(payload)
        with self._changed:
            self.sent += _HEAD.size + len(text) + len(payload)


def _receive(connection: socket.socket, most: int = 1 << 40) -> tuple[bytes, bytearray]:
    """The words and the tensor that come next. Raises EOFError if the connection has ended."""
    words, payload = _HEAD.unpack(_exactly(connection, _HEAD.size))
    if words + payload > most:
        raise EOFError("more than was agreed on")
    return bytes(_exactly(connection, words)), _exactly(connection, payload)


def _exactly(connection: socket.socket, size: int) -> bytearray:
    found = bytearray(size)
    view = memoryview(found)
    while view:
        many = connection.recv_into(view)
        if not many:
            raise EOFError("the connection has ended")
        view = view[many:]
    return found


def _bytes_of(tensors: list[Any]) -> bytes:
    flat = torch.cat([one.detach().flatten().to("cpu", torch.float32) for one in tensors])
    return flat.numpy().tobytes()


def _into(tensors: list[Any], payload: bytearray) -> None:
    """Raises EOFError if it is not of the right length."""
    if len(payload) != 4 * sum(one.numel() for one in tensors):
        raise EOFError("a tensor of another size")
    flat = torch.frombuffer(payload, dtype=torch.float32)
    with torch.no_grad():
        for one, part in zip(tensors, flat.split([one.numel() for one in tensors]), strict=True):
            one.copy_(part.view(one.shape))


__all__ = ["Asynchronous"]
