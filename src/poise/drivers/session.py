"""Connects standard input and output with a service of the task in whose environment it runs. Run as a file:

    python -I -S session.py port 8888      a TCP connection to a port of this machine
    python -I -S session.py ssh            an SSH server for the public key in POISE_SSH_KEY

When the service ends its direction of a connection, a line on standard error gives the number of bytes that it sent:
`{"sent": 512}`. The other direction stays open until its own end. An error is one line of JSON there, with exit code 3.

Standard library only: the environment belongs to the task. The program ends with the task, and when it has no reader.
"""

import contextlib
import json
import os
import socket
import sys
import threading

FAILED = 3
CHUNK = 64 << 10
CONNECT_SECONDS = 10.0
SSH_KEY = "POISE_SSH_KEY"
PLACES = "/usr/sbin:/usr/local/sbin:/sbin"
"""Folders of `sshd`, which are not in the PATH of every user."""

OF_A_LOGIN = {"HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "SHLVL", "_", SSH_KEY}
"""Variables that a login sets itself, or that mean nothing in it."""


class Failed(Exception):
    """It cannot be connected: the reason and a hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def main(arguments: list[str]) -> int:
    try:
        if arguments[:1] == ["port"]:
            return connect(int(arguments[1]))
        return serve_ssh(os.environ.pop(SSH_KEY, ""))
    except Failed as error:
        _tell({"message": str(error), "hint": error.hint})
        return FAILED


def connect(port: int) -> int:
    """Pass bytes in both directions until both have ended."""
    service = _connected(port)
    giving = threading.Thread(target=_give, args=(service,), daemon=True)
    giving.start()
    sent = 0
    with contextlib.suppress(ConnectionError):
        while data := service.recv(CHUNK):
            _write(data)
            sent += len(data)
    _tell({"sent": sent})
    giving.join()
    return 0


def _connected(port: int) -> socket.socket:
    errors = []
    for host in ("127.0.0.1", "::1"):
        try:
            made = socket.create_connection((host, port), CONNECT_SECONDS)
        except OSError as error:
            errors.append(error.strerror or str(error))
        else:
            made.settimeout(None)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made
    raise Failed(f"port {port} of its node cannot be reached: {errors[0]}", "does the job listen on it?")


def _give(service: socket.socket) -> None:
    """Pass standard input on; end this direction of the connection with it."""
    with contextlib.suppress(OSError):
        while data := os.read(0, CHUNK):
            service.sendall(data)
        service.shutdown(socket.SHUT_WR)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def serve_ssh(key: str) -> int:
    """Run an SSH server for this connection, which accepts this key of this user only."""
    import pwd  # a connection to a port begins without these
    import shutil
    import subprocess
    import tempfile

    path = f"{os.environ.get('PATH', '')}:{PLACES}"
    server, maker = shutil.which("sshd", path=path), shutil.which("ssh-keygen", path=path)
    if server is None or maker is None:
        missing = "sshd" if server is None else "ssh-keygen"
        raise Failed(f"the node of the job has no `{missing}`", "install openssh-server there; it need not run")
    with tempfile.TemporaryDirectory(prefix="poise-ssh-") as folder:
        make = [maker, "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/key"]
        subprocess.run(make, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # noqa: S603 - our own
        _save(f"{folder}/known", f"{key}\n")
        _save(f"{folder}/config", ssh_config(folder, pwd.getpwuid(os.getuid()).pw_name, dict(os.environ)))
        return subprocess.run([server, "-i", "-e", "-f", f"{folder}/config"]).returncode  # noqa: S603 - as above


def _save(path: str, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def ssh_config(folder: str, user: str, env: dict[str, str]) -> str:
    """Return the configuration of the server: logins have the environment of the task."""
    kept = " ".join(_quoted(f"{name}={env[name]}") for name in sorted(env) if _is_kept(name, env[name]))
    return f"""HostKey {folder}/key
AuthorizedKeysFile {folder}/known
AllowUsers {user}
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
PidFile none
LogLevel ERROR
Subsystem sftp internal-sftp
AcceptEnv LANG LC_* TERM COLORTERM
{f"SetEnv {kept}" if kept else ""}
"""


def _is_kept(name: str, value: str) -> bool:
    return name not in OF_A_LOGIN and name.isascii() and not set("\n\r\0").intersection(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _tell(said: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        os.write(2, json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
