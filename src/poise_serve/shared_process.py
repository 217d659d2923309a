"""`python -m poise_serve.shared_process`: one process that serves the models of several services (`process: NAME`).

The gateway sends the models to load and unload (`Load`, `Unload`). Each model has a thread, in which it is loaded and
answers its requests, and a connection to its service, as in a process of its own (`poise_serve.replica`). Models are
loaded one after the other. While a model is loaded, its folder is the working directory and comes first in `sys.path`.
Modules that it then imports from its folder are its own, because another model may have modules with the same names.

It ends if no gateway takes over from one that was killed, or on SIGTERM, after the current batches and requests.
"""

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

from poise.drivers import sockets
from poise.errors import InputError, PoiseError
from poise.model.precision import VARIABLE
from poise_serve.replica import (
    Gateway,
    Model,
    Settings,
    Stopping,
    Worker,
    dial_beyond,
    dial_in_time,
    end_on_term,
    gateway_of,
    in_time,
    load_model,
    prepared,
    read_frame,
    say,
    watch,
)
from poise_serve.wire import Enter, Failed, FromProcess, Hello, Keep, Load, Loaded, Loading, decode_to_process, framed

MOST_TOLD = 4000
"""Maximum characters of an error that are sent to the gateway."""

INSTALLED = ("site-packages", "dist-packages")
"""Folders of modules that all models share."""


class SharedProcess:
    """The models of this process, and the connection that names them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._channel = in_time(lambda: _dial(gateway))
        self._sending = threading.Lock()
        self._loading = threading.Lock()
        self._tenants: dict[str, _Tenant] = {}

    def follow(self) -> None:
        """Load and unload models as the gateway requests. Return if no gateway takes over from one that was killed."""
        while True:
            with contextlib.suppress(OSError):
                while (data := read_frame(self._channel)) is not None:
                    message = decode_to_process.decode(data)
                    if isinstance(message, Load):
                        self._load(message)
                    elif isinstance(message, Keep):
                        for place in set(self._tenants) - set(message.sockets):
                            self._unload(place)
                    else:
                        self._unload(message.socket)
            self._channel.close()
            try:
                self._channel = in_time(lambda: _dial(self._gateway))
            except InputError:
                return

    def end(self) -> None:
        """Wait until all models have answered their current batches and requests."""
        tenants = list(self._tenants.values())
        for tenant in tenants:
            tenant.end()
        for tenant in tenants:
            tenant.thread.join()

    def tell(self, message: FromProcess) -> None:
        with self._sending, contextlib.suppress(OSError):  # the next gateway sees what is loaded
            self._channel.sendall(framed(message))

    def _load(self, load: Load) -> None:
        known = self._tenants.get(load.socket)
        if known is not None and known.thread.is_alive():
            known.say_again()  # another gateway has taken over
            return
        enter = self._gateway.enter
        gateway = Gateway(
            Path(load.socket), self._gateway.address, Enter(load.socket, enter.task, enter.epoch, enter.key)
        )
        self._tenants[load.socket] = _Tenant(self, gateway, load, self._loading)

    def _unload(self, place: str) -> None:
        if (tenant := self._tenants.pop(place, None)) is not None:
            tenant.end()


class _Tenant:
    """One model, and its thread."""

    def __init__(self, process: SharedProcess, gateway: Gateway, load: Load, loading: threading.Lock) -> None:
        self._process, self._gateway, self._load, self._loading = process, gateway, load, loading
        self._worker: Worker | None = None
        self._is_over = False
        self._said: FromProcess | None = None
        self.thread = threading.Thread(target=self._run, name=load.service, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Stop after the current batch or requests."""
        self._is_over = True
        if (worker := self._worker) is not None:
            worker.end()

    def say_again(self) -> None:
        """Report to another gateway whether the model is loaded."""
        if self._said is not None:
            self._process.tell(self._said)

    def _say(self, message: FromProcess) -> None:
        self._said = message
        self._process.tell(message)

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException:  # of the model's own objects; in a process of its own, the process would end
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _serve(self) -> None:
        load = self._load
        with self._loading:
            if self._is_over:
                return
            self._say(Loading(load.socket))
            try:
                made = self._prepared()
            except BaseException as error:  # including `sys.exit()` in the model
                self._say(Failed(load.socket, _why(error)))
                return
            self._say(Loaded(load.socket))
        worker, model, hello = made
        self._worker = worker
        if self._is_over:
            worker.end()
        threading.Thread(target=self._watch, args=(worker,), daemon=True).start()
        worker.run(model, hello)
        worker.forget()
        del made, model
        with self._loading:
            _release()

    def _watch(self, worker: Worker) -> None:
        """Reconnect as long as the model is loaded. If there is no gateway, the process ends."""
        while not worker.stopping:
            watch(self._gateway, worker)

    def _prepared(self) -> tuple[Worker, Model, Hello]:
        """Load the model, and connect it to its service."""
        load = self._load
        worker = Worker(dial_in_time(self._gateway), is_alone=False)
        settings = Settings(load.service, load.batch, load.at_once, load.whole)
        with _at_home(load):
            model = load_model(load.model, f"{load.service}:{load.model.partition(':')[0]}")
            hello = prepared(worker, model, load.model, self._gateway.enter.name, settings)
        gc.collect()
        gc.freeze()  # as in `poise_serve.replica`
        return worker, model, hello


def _dial(gateway: Gateway) -> socket.socket:
    """Connect to the part of the gateway that names the models to load."""
    if gateway.is_beyond:
        return dial_beyond(gateway)
    try:
        channel = sockets.connect(gateway.path, None)
        channel.sendall(framed(gateway.enter))
    except OSError as error:
        raise InputError(f"the gateway is gone: {error.strerror}", field=str(gateway.path)) from None
    return channel


@contextlib.contextmanager
def _at_home(load: Load) -> Iterator[None]:
    """Let a model import and open the files of its folder. Afterwards, other models do not see the modules of the
    folder.
    """
    before, path, folder = set(sys.modules), list(sys.path), Path(load.folder).resolve()
    precision = os.environ.get(VARIABLE)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    if load.precision:
        os.environ[VARIABLE] = load.precision
    try:
        yield
    finally:
        if precision is not None:
            os.environ[VARIABLE] = precision
        else:
            os.environ.pop(VARIABLE, None)
        homes = {str(folder), *(set(sys.path) - set(path))}
        sys.path[:] = path
        for name in set(sys.modules) - before:
            if ":" not in name and _is_within(getattr(sys.modules[name], "__file__", None), homes):
                del sys.modules[name]


def _is_within(file: str | None, folders: set[str]) -> bool:
    """Whether a module is in one of these folders, and not installed there."""
    if not file:
        return False
    place = Path(file).resolve()
    return not set(INSTALLED) & set(place.parts) and any(place.is_relative_to(Path(one).resolve()) for one in folders)


def _why(error: BaseException) -> str:
    """Describe why a model cannot be loaded, and print the traceback of its own errors."""
    if isinstance(error, PoiseError):
        say(error)
        return ": ".join(filter(None, (error.record.field, error.record.message)))
    frames = error.__traceback__
    while frames is not None and Path(frames.tb_frame.f_code.co_filename).parent == Path(__file__).parent:
        frames = frames.tb_next  # those of the model only
    text = "".join(traceback.format_exception(type(error), error, frames))
    sys.stderr.write(text)
    return text[-MOST_TOLD:].strip()


def _release() -> None:
    """Release the memory of an unloaded model."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _stop(*_: object) -> None:
    raise Stopping


def main() -> int:
    """Run the process. Returns 0 after SIGTERM, 1 without a gateway."""
    try:
        process = SharedProcess(gateway_of(os.environ))
    except PoiseError as error:
        return say(error)
    os.register_at_fork(after_in_child=end_on_term)

    def follow() -> None:
        process.follow()
        os._exit(0)  # nobody waits for answers any more

    with contextlib.suppress(Stopping):
        signal.signal(signal.SIGTERM, _stop)
        threading.Thread(target=follow, daemon=True).start()
        while True:
            signal.pause()
    process.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())

__all__ = ["SharedProcess"]
