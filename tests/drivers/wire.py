"""Ways between a control plane and the store of its log, which can be cut, and nobody is told."""

import contextlib
import shutil
import socket
import tempfile
import threading
from pathlib import Path


class Wire:
    def __init__(self) -> None:
        self._whole = threading.Event()
        self._whole.set()
        self._listening: list[socket.socket] = []
        self._folder = Path(tempfile.mkdtemp(prefix="poise-wire-"))

    def to_socket(self, path: Path) -> Path:
        """The folder in which a socket of this name leads there."""
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(self._folder / path.name))
        self._open(listening, socket.AF_UNIX, str(path))
        return self._folder

    def to_port(self, port: int) -> int:
        """The port of loopback that leads to that one."""
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        self._open(listening, socket.AF_INET, ("127.0.0.1", port))
        here: int = listening.getsockname()[1]
        return here

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self.mend()
        for listening in self._listening:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # whoever waits there is told
            listening.close()
        shutil.rmtree(self._folder)

    def _open(self, listening: socket.socket, family: int, there: str | tuple[str, int]) -> None:
        listening.listen()
        self._listening.append(listening)
        threading.Thread(target=self._accept, args=(listening, family, there), daemon=True).start()

    def _accept(self, listening: socket.socket, family: int, to: str | tuple[str, int]) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, there = listening.accept()[0], socket.socket(family)
                try:
                    there.connect(to)
                except OSError:  # whoever is there is away
                    here.close()
                    continue
                for ends in ((here, there), (there, here)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                self._whole.wait()
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
