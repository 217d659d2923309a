"""A process of several models, and the gateways that tell it what to load."""

import gc
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from poise_serve import replica
from poise_serve.replica import Gateway, read_frame
from poise_serve.shared import make_buffer
from poise_serve.shared_process import SharedProcess
from poise_serve.wire import Enter, FromProcess, Load, Loaded, Loading, decode_from_process, framed

MODEL = """
class Model:
    def predict(self, batch: list[int]) -> list[int]:
        return batch
"""


class Played:
    """A gateway: the sockets for the process, and for one model in it."""

    def __init__(self, folder: Path) -> None:
        self.process, self.model = (socket.socket(socket.AF_UNIX) for _ in range(2))
        for one, name in ((self.process, "process"), (self.model, "model")):
            one.settimeout(10)
            one.bind(str(folder / name))
            one.listen()
        self.load = Load(str(folder / "model"), "m", "model.py:Model", str(folder), 1, 1)

    def accept(self) -> socket.socket:
        channel, _ = self.process.accept()
        channel.settimeout(10)
        assert isinstance(self.heard(channel), Enter)
        channel.sendall(framed(self.load))
        return channel

    def accept_model(self) -> socket.socket:
        channel, _ = self.model.accept()
        buffers = [make_buffer() for _ in range(2)]
        socket.send_fds(channel, [b"\0"], buffers)
        for buffer in buffers:
            os.close(buffer)
        return channel

    def heard(self, channel: socket.socket) -> FromProcess:
        frame = read_frame(channel)
        assert frame is not None
        return decode_from_process.decode(frame)

    def close(self) -> None:
        self.process.close()
        self.model.close()


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(replica, "TAKEN_OVER_WITHIN", 0.5)
    (tmp_path / "model.py").write_text(MODEL)
    played = Played(tmp_path)
    yield played
    played.close()
    gc.unfreeze()


def test_another_gateway_is_told_that_a_model_is_loaded(gateway: Played, tmp_path: Path) -> None:
    process = SharedProcess(Gateway(tmp_path / "process", "", Enter(str(tmp_path / "process"), "j1", 1, "")))
    following = threading.Thread(target=process.follow, daemon=True)
    following.start()
    with gateway.accept() as channel, gateway.accept_model():
        assert [gateway.heard(channel) for _ in range(2)] == [Loading(gateway.load.socket), Loaded(gateway.load.socket)]
        channel.shutdown(socket.SHUT_RDWR)
        with gateway.accept() as another:
            assert gateway.heard(another) == Loaded(gateway.load.socket)
            process.end()
            gateway.close()
    following.join(10)
    assert not following.is_alive()
