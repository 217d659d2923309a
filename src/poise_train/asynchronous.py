"""Asynchronous SGD: a parameter server holds the weights, and workers do not wait for each other.

    with Asynchronous(model, optimizer, data, batch=32, epochs=3, checkpoint="checkpoints") as run:
        for batch in run:
            run.step(loss_fn(model(batch)))

Worker 0 is the server: its loop has no iterations. It applies the workers' gradients with its optimizer, reports, and
writes the checkpoints. At the end all workers have its weights. They wait for a slow worker only to respect the limit
on staleness (`poise_train.handout`, which also explains why each sample is used once in a pass). Each piece of `batch`
samples is a separate step. Staleness acts like momentum (Mitliagkas et al., "Asynchrony begets momentum", 2016): use
less momentum in the optimizer than otherwise.

Each worker has its own TCP connection to the server, so that a lost worker closes only its own connection. A message is
the lengths, a few values as msgpack, and a tensor in fp32 as in memory. The first message has a secret, which the
process group distributes.
"""

import functools
import os
import secrets
import signal
import socket
import statistics
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any

import msgspec
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from poise.decoding import msgpack_decoder
from poise.drivers.heartbeat import step as beat
from poise.errors import GangBroken, Misused
from poise.model.training import ENDED_AS_ASKED, Training
from poise_train import given, shards, state
from poise_train.gang import Gang, next_session
from poise_train.handout import Piece, Pieces
from poise_train.keeping import Keeping
from poise_train.loading import loaded, loading_of, moved
from poise_train.policy.checkpoints import Keep
from poise_train.session import BATCH, RECENT_STEPS
from poise_train.telling import Teller

CONNECT_SECONDS = 60.0
"""Timeout of a worker for the server, and of the server for its first worker."""

LOOK_SECONDS = 0.1
"""Interval at which the server checks for SIGTERM."""

DONE, ASKED = -1, -2
"""Values of `Given.turn` without a piece: training is done; the server got SIGTERM."""

MILLION = 1_000_000

_HEAD = struct.Struct("!IQ")


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """First message of a worker."""

    secret: bytes
    rank: int


class Given(msgspec.Struct, frozen=True, array_like=True):
    """The next piece for a worker, sent with the weights; a negative `turn` says why there is none."""

    turn: int
    start: int = 0
    stop: int = 0


class Learned(msgspec.Struct, frozen=True, array_like=True):
    """The loss of a worker's piece, sent with the gradient."""

    loss: float


class Asynchronous:
    """Training of `model` by `optimizer` on `data`, a Dataset with a length or a DataLoader, as for a `Session`. It
    makes `epochs` passes in the orders of `seed`, in pieces of `batch` samples, each of them a step. `staleness` is the
    maximum number of other gradients applied since the weights of a gradient; below the number of workers minus two it
    makes some of them wait.

    `checkpoint`, `keep` and `every` are as for a `Session`; worker 0 writes the checkpoints, and resumes from them. At
    SIGTERM, worker 0 saves one, and all end with exit code 143; another worker ends alone. `sent` counts the sent bytes
    of this process, `stale` (at the server) the frequency of each staleness. Raises Misused, and GangBroken if the
    server or all of its workers are lost.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Dataset[Any] | DataLoader[Any],
        *,
        batch: int = 0,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool | None = None,
        staleness: int = 8,
        checkpoint: str | os.PathLike[str] | None = None,
        keep: Keep = Keep(),  # noqa: B008  it is frozen
        every: int | str = "",
    ) -> None:
        loader = data if isinstance(data, DataLoader) else None
        self.data: Dataset[Any] = loader.dataset if loader is not None else data  # type: ignore[assignment]
        given.check_model(model, optimizer)
        given.check_distributed(model, optimizer)
        given.check_data(self.data, loader)
        given.check_numbers(batch=batch, epochs=epochs, seed=seed, staleness=staleness)
        given.check_parameters(optimizer, {"model": model})
        if any(one.is_floating_point() for one in model.buffers()):
            raise Misused(
                "a parameter server does not support models with other state, such as batch norms",
                field="model",
                hint="poise.Session(model, optimizer, data)",
            )
        self.model, self.optimizer = model, optimizer
        self.batch = batch or (loader.batch_size if loader is not None else 0) or BATCH
        self.samples = self.sent = 0
        self.stale: dict[int, int] = {}
        whole = len(self.data)  # type: ignore[arg-type]
        self._samples = whole - whole % self.batch if loader is not None and loader.drop_last else whole
        self._shuffle = shuffle if shuffle is not None else loader is None or isinstance(loader.sampler, RandomSampler)
        self._loading = loading_of(loader)
        self._of, self._epochs, self._seed, self._staleness = whole, epochs, seed, staleness
        self._pieces = Pieces(self._samples, self.batch, epochs, staleness)
        self._parameters = [one for one in model.parameters() if one.requires_grad]
        self._device = next((one.device for one in self._parameters), torch.device("cpu"))
        self._gang = Gang(torch.device("cpu"))
        self._keeping = Keeping(checkpoint, keep, every)
        self._teller = Teller()
        self._changed = threading.Condition()
        self._workers: set[int] = set()
        self._came = 0
        self._pending: dict[int, bytearray] = {}  # received gradients that are not applied yet
        self._losses: dict[int, float] = {}
        self._socket: socket.socket | None = None
        self._listening: socket.socket | None = None
        self._stepped = True
        self._stopping = False
        self._handler: Any = None
        self._broken: BaseException | None = None
        self._steps, self._loss = 0, 0.0
        self._times: deque[float] = deque(maxlen=RECENT_STEPS)
        self._moment = 0.0
        self._began = time.time()

    @property
    def rank(self) -> int:
        return self._gang.rank

    def __enter__(self) -> "Asynchronous":
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, self._asked_to_end)
        self._gang.session = next_session()
        self._keeping.of_session(self._gang.session)
        try:
            self._meet()
        except BaseException:
            self._leave()
            raise
        return self

    def _meet(self) -> None:
        self._gang.form()
        if not self._gang.together:
            raise Misused("a parameter server needs a worker", need="2 processes or more", have="1", hint="--workers 3")
        epoch, training = self._gang.agreed()
        told = None
        if not self.rank:
            self._keeping.open(0, 1, epoch, training)
            self._restore()
            host = os.environ.get("MASTER_ADDR", "127.0.0.1")
            self._listening = socket.create_server((host, 0), backlog=self._gang.world)
            told = {
                "host": host,
                "port": self._listening.getsockname()[1],
                "secret": secrets.token_bytes(32),
                "fixed": self._fixed(),
            }
        found = state.broadcast(told, 0, self.rank, torch.device("cpu"))
        with torch.no_grad():
            for one, sent in zip(self._fixed(), found["fixed"], strict=True):
                one.copy_(sent)
        self._moment = time.perf_counter()
        if self._listening is not None:
            threading.Thread(target=self._accept, args=(self._listening, found["secret"]), daemon=True).start()
        else:
            self._socket = socket.create_connection((found["host"], found["port"]), CONNECT_SECONDS)
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._send(self._socket, Hello(found["secret"], self.rank), b"")

    def _fixed(self) -> list[torch.Tensor]:
        """Return the tensors of the model that are not trained. They are sent once, and the weights with each piece."""
        return [*(one for one in self.model.parameters() if not one.requires_grad), *self.model.buffers()]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._keeping.close()
            self._teller.tell(self.training, now=True)
            self._teller.rests()
            if kind is None:
                self._keeping.check_last()
        finally:
            self._leave()

    def _leave(self) -> None:
        for one in (self._socket, self._listening):
            if one is not None:
                one.close()
        if self._handler is not None:
            handler, self._handler = self._handler, None
            signal.signal(signal.SIGTERM, handler)
        self._gang.disband()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over this worker's batches; the server serves here and yields none."""
        if self._socket is None:
            self._serve()
            return
        drawn = torch.Generator().manual_seed(self._seed + self.rank)
        try:
            for batch in loaded(self.data, self._indices(), drawn, self._one_at_a_time()):
                self._stepped = False
                yield moved(batch, self._device)
                if not self._stepped:
                    raise Misused("samples were read without a step", hint="run.step(loss)")
                if self._stopping:
                    raise SystemExit(ENDED_AS_ASKED)
        except (OSError, EOFError) as error:
            raise GangBroken("the parameter server was lost", have=str(error), hint="poise logs JOB") from error

    def _indices(self) -> Iterator[list[int]]:
        """Yield the sample indices of each piece, after loading its weights."""
        order = functools.lru_cache(2)(  # two passes may overlap
            lambda turn: shards.order(self._of, seed=self._seed, turn=turn, shuffle=self._shuffle)
        )
        while (piece := self._next()).turn >= 0:
            yield order(piece.turn)[piece.start : piece.stop].tolist()
        if piece.turn == ASKED:
            raise SystemExit(ENDED_AS_ASKED)

    def _one_at_a_time(self) -> Mapping[str, Any]:
        """Disable prefetching: a worker must finish a piece before it requests the next, or it would get stale
        weights.
        """
        return {name: self._loading[name] for name in ("collate_fn",) if name in self._loading}

    def step(self, loss: torch.Tensor) -> None:
        """Compute the gradient and send it."""
        line = self._line()
        given.check_loss(loss)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in self._parameters]
        self._loss = float(loss)
        try:
            self._send(line, Learned(self._loss), _bytes_of(parts))
        except OSError as error:
            raise GangBroken("the parameter server was lost", have=str(error), hint="poise logs JOB") from error
        self._stepped = True
        self._count()
        self._teller.tell(self.training)

    def training(self) -> Training:
        """Report progress: the server's covers the whole training, a worker's its own steps."""
        median = statistics.median(self._times) if self._times else 0.0
        step_time = int(median * 1e9)
        if self.rank:
            return Training(step=self._steps, step_time=step_time, loss=self._loss)
        elapsed, every = time.time() - self._began, self._epochs * self._samples
        return Training(
            step=self._pieces.version,
            samples=self.samples,
            progress=min(MILLION, MILLION * self.samples // every) if every else -1,
            safe=self._keeping.safe,
            world=self._gang.world,
            batch=self.batch,
            effective=self.batch,
            rate=float(self.optimizer.param_groups[0]["lr"]),
            loss=self._loss,
            step_time=step_time,
            goodput=int(1000 * self.samples / elapsed) if elapsed > 0 else 0,
            throughput=int(1000 * self.batch / median) if median else 0,
            sent=self.sent // max(1, self._steps),
            plain=self.sent // max(1, self._steps),
            checkpoint=self._keeping.said(),
            restored=self._keeping.restored,
        )

    def _count(self) -> None:
        """Count a step of this process."""
        moment = time.perf_counter()
        self._times.append(moment - self._moment)
        self._moment = moment
        self._steps += 1
        beat()

    def _asked_to_end(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    # --- a worker ----------------------------------------------------------------------------------------------------

    def _line(self) -> socket.socket:
        if self._socket is None:
            raise Misused("the parameter server makes no steps itself", hint="for batch in run: run.step(loss)")
        return self._socket

    def _next(self) -> Given:
        words, payload = _receive(self._line())
        _into(self._parameters, payload)
        return msgpack_decoder(Given).decode(words)

    # --- the server --------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Serve until all samples of all passes are applied and the workers have disconnected."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._came or self._stopping, CONNECT_SECONDS):
                raise GangBroken("no worker has connected to the parameter server", hint="poise logs JOB")
            while self._workers:
                self._changed.wait(LOOK_SECONDS)
                if self._is_ending:
                    self._changed.notify_all()
            if self._broken is not None:
                raise self._broken
            self._save(parting=self._pieces.done or self._stopping)
            if self._stopping and not self._pieces.done:
                raise SystemExit(ENDED_AS_ASKED)
            if not self._pieces.done:
                raise GangBroken("all workers of the parameter server were lost", hint="poise logs JOB")

    def _accept(self, server: socket.socket, secret: bytes) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return  # it is closed
            threading.Thread(target=self._attend, args=(connection, secret), daemon=True).start()

    def _attend(self, connection: socket.socket, secret: bytes) -> None:
        """Serve one worker's connection."""
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
                    words, gradient = _receive(connection)
                    self._take_in(hello.rank, msgpack_decoder(Learned).decode(words), gradient)
            except (OSError, EOFError, msgspec.DecodeError):
                pass  # the worker is lost; its piece is handed out again
            except BaseException as error:
                self._broken = error
            finally:
                with self._changed:
                    self._pieces.lose(hello.rank)
                    self._pending.pop(hello.rank, None)
                    self._workers.discard(hello.rank)
                    self._apply_what_is_due()

    def _hand_out(self, connection: socket.socket, worker: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._pieces.done or self._is_ending or self._can_take())
            out = None if self._is_ending else self._pieces.take(worker)
            weights = _bytes_of(self._parameters)
            none = DONE if self._pieces.done else ASKED
        self._send(connection, Given(*out.piece) if out is not None else Given(none), weights)
        return out is not None

    @property
    def _is_ending(self) -> bool:
        return self._stopping or self._broken is not None

    def _can_take(self) -> bool:
        return not self._pieces.exhausted and len(self._pieces.out) <= self._pieces.most

    def _take_in(self, worker: int, learned: Learned, gradient: bytearray) -> None:
        """Queue a gradient, and return after it is applied."""
        with self._changed:
            self._pending[worker], self._losses[worker] = gradient, learned.loss
            self._pieces.hold(worker)
            self._apply_what_is_due()
            self._changed.wait_for(lambda: worker not in self._pending or self._broken is not None)

    def _apply_what_is_due(self) -> None:
        """Apply queued gradients in order. An error ends the training; the server's loop raises it."""
        try:
            while self._broken is None and (worker := self._pieces.due()) is not None:
                self._apply(worker)
        except BaseException as error:
            self._broken = error
        self._changed.notify_all()

    def _apply(self, worker: int) -> None:
        _, start, stop = self._pieces.out[worker].piece
        stale = self._pieces.apply(worker)
        self.stale[stale] = self.stale.get(stale, 0) + 1
        for parameter in self._parameters:
            parameter.grad = torch.empty_like(parameter)
        _into([one.grad for one in self._parameters if one.grad is not None], self._pending.pop(worker))
        self.optimizer.step()
        self.samples += stop - start
        self._loss = self._losses[worker]
        self._count()
        if self._keeping.due(self._pieces.version):
            self._save()
        self._teller.tell(self.training)

    def _save(self, *, parting: bool = False) -> None:
        """Save the weights, and the pieces that are not applied to them, which are computed after a resume."""
        every = self._epochs * self._samples
        self._keeping.save(
            self._state,
            step=self._pieces.version,
            progress=MILLION * self.samples // every if every else -1,
            parting=parting,
            optimizer=self.optimizer,
        )

    def _state(self) -> dict[str, Any]:
        place = {
            "begun": self._pieces.begun,
            "back": [list(one) for one in self._pieces.open],
            "samples": self.samples,
            "began": self._began,
            "loss": self._loss,
            "order": self._order(),
        }
        return {"place": place, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def _order(self) -> dict[str, int]:
        return {"samples": self._samples, "batch": self.batch, "seed": self._seed, "shuffle": int(self._shuffle)}

    def _restore(self) -> None:
        if (found := self._keeping.restore()) is None:
            return
        whole = found[0]
        place = whole.get("place", {})
        if place.get("order") != self._order():
            raise Misused(
                "the checkpoint belongs to another training, or to another order of samples",
                field="checkpoint",
                need=str(place.get("order", "a checkpoint of Asynchronous")),
                have=str(self._order()),
                hint='checkpoint="another folder"',
            )
        self.model.load_state_dict(whole["model"])
        self.optimizer.load_state_dict(whole["optimizer"])
        back = [Piece(*one) for one in place["back"]]
        self._pieces = Pieces(self._samples, self.batch, self._epochs, self._staleness, begun=place["begun"], back=back)
        self.samples, self._began, self._loss = place["samples"], place["began"], place["loss"]
        self._keeping.go_on_from(self._pieces.version)

    def _send(self, connection: socket.socket, words: Any, payload: bytes) -> None:
        text = msgspec.msgpack.encode(words)
        connection.sendall(_HEAD.pack(len(text), len(payload)) + text)
        connection.sendall(payload)
        with self._changed:
            self.sent += _HEAD.size + len(text) + len(payload)


def _receive(connection: socket.socket, most: int = 1 << 40) -> tuple[bytes, bytearray]:
    """Receive the next message and its tensor. Raises EOFError if the connection has ended."""
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
    """Return the values of the tensors, each in its own type."""
    dense = [one.detach().to_dense() if one.is_sparse else one.detach() for one in tensors]
    return torch.cat([one.to("cpu").flatten().view(torch.uint8) for one in dense]).numpy().tobytes()


def _into(tensors: list[Any], payload: bytearray) -> None:
    """Copy the payload into the tensors. Raises EOFError if its length is wrong."""
    sizes = [one.numel() * one.element_size() for one in tensors]
    if len(payload) != sum(sizes):
        raise EOFError("a tensor of another size")
    parts = torch.frombuffer(payload, dtype=torch.uint8).split(sizes)
    with torch.no_grad():
        for one, part in zip(tensors, parts, strict=True):
            one.copy_(part.clone().view(one.dtype).view(one.shape))  # a copy: a view of another type must be aligned


__all__ = ["Asynchronous"]
