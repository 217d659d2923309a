"""`poise join`: add this machine as a node of a remote control plane; and `poise up --ssh`, which does so over ssh."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from poise.cli.render import print_json, say
from poise.client import Client
from poise.config import Address, Home
from poise.decoding import json_decoder
from poise.drivers.lock import holder
from poise.drivers.reach import home_elsewhere
from poise.drivers.security import ensure_home, token_for, whole_token
from poise.drivers.whole import write_whole
from poise.errors import Conflict, Denied, Fault, Forbidden, InputError, NotFound, PoiseError
from poise.model.resources import check_node_name

DEFAULT_HOME = "~/.poise-node"

JOIN_SECONDS = 60.0
"""Time limit for the agent to connect, on a machine that has just booted."""

STOP_SECONDS = 15.0

CONNECTED = "connected to"
"""The agent's message once the control plane has answered. (`poise.agent`)"""

REFUSED = "this node is refused: "
"""The start of the agent's message, before the reason, when the control plane refuses the node. (`poise.agent`)"""


ASK_FOR_ONE = "`poise token add --tenant default --role node`, where the control plane runs"


class Joined(msgspec.Struct, frozen=True):
    """How this machine joined; stored in its home for `--undo`. `service` is empty without a service manager."""

    name: str
    address: str
    service: str = ""


@click.command()
@click.option("--token", metavar="TOKEN", help="Token of the role `node`; other users of this machine can see it here.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="File with the token; - reads standard input. [default: POISE_TOKEN_FILE]",
)
@click.option("--name", metavar="NAME", help="Name of the node. [default: the host name]")
@click.option(
    "--home",
    "folder",
    type=click.Path(path_type=Path),
    default=Path(DEFAULT_HOME),
    show_default=True,
    metavar="FOLDER",
    help="State directory of the node's agent.",
)
@click.option("--undo", is_flag=True, help="Stop the agent, remove its service, and leave; running commands continue.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("address", required=False, metavar="HOST:PORT#FINGERPRINT")
def join(
    address: str | None,
    token: str | None,
    token_file: Path | None,
    name: str | None,
    folder: Path,
    undo: bool,
    as_json: bool,
) -> int:
    """Add this machine as a node of the control plane at HOST:PORT#FINGERPRINT.

    On the machine of the control plane, `poise status` prints the address, and `poise token add --tenant default --role
    node` creates the token. The agent runs as a systemd user service if there is a user manager. Otherwise
    nothing starts it again when it ends or the machine restarts: join again with the same command.
    """
    home = Home(folder.expanduser().resolve())
    if undo:
        return _undo(home, as_json)
    if address is None:
        raise click.UsageError("an address is needed: HOST:PORT#FINGERPRINT, as `poise status` prints it")
    wanted = Joined(name or os.uname().nodename, address)
    check_node_name(wanted.name, "--name")
    there = home_elsewhere(home.root, address)
    if _agent(home):
        raise Conflict(
            "this machine has joined already",
            field=str(home.root),
            hint=f"`poise join --undo --home {home.root}` first",
        )
    secret = _secret(token, token_file, there)
    _check_token(there, secret)
    ensure_home(home)
    write_whole(_token_of(home), f"{secret}\n".encode(), mode=0o600)
    home.messages.unlink(missing_ok=True)
    wanted = _start(home, wanted)
    write_whole(home.root / "joined.json", msgspec.json.encode(wanted))
    try:
        _await_connection(home)
    except (Conflict, Fault, KeyboardInterrupt):
        _leave(home)  # do not leave a half-joined machine
        raise
    if as_json:
        print_json(wanted)
    else:
        how = f"as the service {wanted.service}" if wanted.service else "without a service: no systemd user manager"
        say(f"poise: node {wanted.name} has joined {there.elsewhere}; its agent runs {how}")
        if not wanted.service:
            say("poise: nothing starts the agent again when it ends: the same `poise join` does")
        if os.geteuid() != 0:
            say("poise: commands of all users run as you here: only an agent that runs as root changes users")
    return 0


def _undo(home: Home, as_json: bool) -> int:
    left = _read_joined(home)
    secret = _token_of(home).read_text().strip() if _token_of(home).exists() else ""
    _leave(home)
    untold = _take_leave(home, left, secret)
    if as_json:
        print_json({"left": left.name})
    else:
        say(f"poise: node {left.name} has left {Address.parse(left.address.partition(',')[0])}")
    if untold:
        say(f"poise: the control plane was not told, and lists the node as lost for an hour: {untold}")
    return 0


def _take_leave(home: Home, left: Joined, secret: str) -> str:
    """Sign off, so that the control plane does not wait for the node. Return the error, or an empty text."""
    try:
        with Client(home_elsewhere(home.root, left.address), patience=0.0, token=secret) as client:
            client.leave(left.name)
    except NotFound:
        return ""  # the control plane has forgotten the node
    except (PoiseError, OSError) as error:
        return str(error)
    return ""


def _secret(token: str | None, token_file: Path | None, there: Home) -> str:
    if token is not None and token_file is not None:
        raise click.UsageError("`--token` and `--token-file` exclude each other")
    if token is not None:
        return whole_token(token, "--token", ASK_FOR_ONE)
    if token_file is None:
        return token_for(there)
    try:
        text = sys.stdin.read() if str(token_file) == "-" else token_file.read_text()
    except OSError as error:
        raise InputError(f"the token cannot be read: {error.strerror}", field="--token-file") from None
    except UnicodeDecodeError:
        raise Denied("this is not a token: it is not text", field="--token-file", hint=ASK_FOR_ONE) from None
    return whole_token(text.strip(), "--token-file", ASK_FOR_ONE)


def _check_token(there: Home, secret: str) -> None:
    """Check that the token has the role `node`: such a token may not query the API. Raises the error of a bad one."""
    with Client(there, patience=0.0, token=secret) as client:
        try:
            told = client.whoami()
        except Forbidden:
            return
    raise InputError(
        "the token is not that of a node", field="--token", need="role node", have=told.role, hint=ASK_FOR_ONE
    )


def _token_of(home: Home) -> Path:
    return home.root / "node.token"


def _agent(home: Home) -> int:
    return holder(home.node / "lock")


# --- keeping the agent running ---------------------------------------------------------------------------------------


def _start(home: Home, wanted: Joined) -> Joined:
    """Start the agent, as a systemd user service if possible."""
    if not _systemctl("show-environment"):
        with home.messages.open("ab") as messages:
            subprocess.Popen(  # noqa: S603 — our own program
                _command(home, wanted),
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                env=os.environ | {"POISE_TOKEN_FILE": str(_token_of(home))},
                start_new_session=True,
                cwd="/",
            )
        return wanted
    service = f"poise-node-{wanted.name}.service"
    unit = _unit_path(service)
    unit.parent.mkdir(parents=True, exist_ok=True)
    unit.write_text(unit_text(home, wanted))
    for command in (("daemon-reload",), ("enable", "--now", service)):
        if not _systemctl(*command):
            raise Fault(f"`systemctl --user {' '.join(command)}` failed", field=str(unit))
    if subprocess.run(["loginctl", "enable-linger"], capture_output=True, check=False).returncode:  # noqa: S607
        say("poise: the service ends when you log out: `loginctl enable-linger` was refused")
    return msgspec.structs.replace(wanted, service=service)


def unit_text(home: Home, wanted: Joined) -> str:
    """Return the unit file of the systemd user service."""
    command = " ".join(_quoted(word) for word in _command(home, wanted))
    return f"""[Unit]
Description=Poise node {wanted.name}
After=network-online.target

[Service]
Environment={_quoted(f"POISE_TOKEN_FILE={_token_of(home)}")}
ExecStart={command}
StandardError=append:{str(home.messages).replace("%", "%%")}
Restart=always
RestartSec=5
KillMode=process
TasksMax=infinity

[Install]
WantedBy=default.target
"""


def _quoted(word: str) -> str:
    """Quote a word for systemd (systemd.syntax)."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"'


def _command(home: Home, wanted: Joined) -> list[str]:
    agent = [sys.executable, "-m", "poise.agent", str(home.root)]
    return [*agent, "--name", wanted.name, "--connect", wanted.address]


def _unit_path(service: str) -> Path:
    configured = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configured) if configured else Path.home() / ".config") / "systemd" / "user" / service


def _systemctl(*arguments: str) -> bool:
    try:
        command = ["systemctl", "--user", *arguments]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
    except FileNotFoundError:
        return False


def _await_connection(home: Home) -> None:
    """Wait until the control plane has answered the agent. Raises Conflict with the reason if it refuses the node, and
    Fault with the agent's messages if it does not answer.
    """
    deadline = time.monotonic() + JOIN_SECONDS
    text = ""
    while time.monotonic() < deadline:
        text = home.messages.read_text() if home.messages.exists() else ""
        if CONNECTED in text:
            return
        if REFUSED in text:
            why = text.partition(REFUSED)[2].partition("\n")[0]
            raise Conflict(
                f"the node is refused: {why}", field=str(home.messages), hint="`poise nodes` lists the names"
            )
        time.sleep(0.05)
    last = text.strip().rpartition("\n")[2]
    raise Fault("the agent does not connect", field=str(home.messages), have=last[-200:], hint=f"tail {home.messages}")


def _read_joined(home: Home) -> Joined:
    try:
        return json_decoder(Joined).decode((home.root / "joined.json").read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        raise NotFound(
            "no node of this machine has joined with this state directory",
            field=str(home.root),
            hint="`poise join --undo --home FOLDER`, if it joined with `--home FOLDER`",
        ) from None


def _leave(home: Home) -> None:
    """Stop the agent and remove its service."""
    joined = _read_joined(home)
    if joined.service:
        _systemctl("disable", "--now", joined.service)
        _unit_path(joined.service).unlink(missing_ok=True)
    deadline = time.monotonic() + STOP_SECONDS
    while pid := _agent(home):
        if time.monotonic() > deadline:
            raise Fault(f"process {pid} does not end", field=str(home.root), hint=f"kill -9 {pid}")
        os.kill(pid, signal.SIGTERM)
        time.sleep(0.05)
    for name in ("joined.json", "node.token"):
        (home.root / name).unlink(missing_ok=True)


# --- other machines, by ssh ------------------------------------------------------------------------------------------

_ASK = "import os, sys; print(*sys.version_info[:2], os.uname().nodename)"


def add_machines(client: Client, address: str, destinations: Sequence[str]) -> None:
    """Install the same version of Poise on each machine, in its own environment, and join it as a node."""
    from poise.drivers.wheel import PYTHON, pack

    with tempfile.TemporaryDirectory(prefix="poise-wheel-") as folder:
        wheel = pack(Path(folder))
        for destination in destinations:
            major, minor, name = _ssh(destination, f"python3 -c {shlex.quote(_ASK)}").split(maxsplit=2)
            name = name.strip()
            if (int(major), int(minor)) < PYTHON:
                need = f"Python {'.'.join(map(str, PYTHON))} or newer"
                raise InputError(
                    "Python on that machine is too old", field=destination, need=need, have=f"{major}.{minor}"
                )
            check_node_name(name, destination)
            if any(node.name == name and node.status != "lost" for node in client.nodes()):
                say(f"poise: {destination} is a node already: {name}")
                continue
            say(f"poise: installing Poise on {destination} …")
            there = f"{DEFAULT_HOME}/{wheel.name}"
            _ssh(destination, f"umask 077; mkdir -p {DEFAULT_HOME}; cat > {there}", wheel.read_bytes())
            python = f"{DEFAULT_HOME}/venv/bin/python"
            _ssh(
                destination,
                f"python3 -m venv {DEFAULT_HOME}/venv && "
                f"{python} -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps {there} && "
                f"{python} -m pip install --quiet --disable-pip-version-check {there}",
            )
            _, secret = client.add_token("default", "node", name=name)
            joins = f"{python} -m poise.cli.main join {shlex.quote(address)} --name {shlex.quote(name)} --token-file -"
            _ssh(destination, joins, secret.encode())
            say(f"poise: {destination} is the node {name}")


def _ssh(destination: str, command: str, given: bytes = b"") -> str:
    """Run a command on another machine; return its output. Raises Fault with the end of its stderr."""
    arguments = ["ssh", "-o", "BatchMode=yes", "--", destination, command]
    try:
        done = subprocess.run(arguments, input=given, capture_output=True, check=False)  # noqa: S603
    except FileNotFoundError:
        raise InputError("ssh is not installed", field="--ssh", hint="install OpenSSH's client") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        hint = f"`ssh {destination}` has to work without a password" if done.returncode == 255 else ""
        raise Fault(f"a command failed on {destination}", field="--ssh", have=said[-400:], hint=hint)
    return done.stdout.decode("utf-8", "replace")
