"""`poise ssh JOB`."""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click

from poise.cli.forward import passed_on
from poise.cli.numbers import WholeRange
from poise.cli.render import print_json
from poise.client import Client, current_home
from poise.config import Home
from poise.control.start import connected
from poise.errors import Fault, SpecError
from poise.model.reports.streams import ExecEnd, ExecOutput


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--rank", type=WholeRange(min=0), metavar="N", help="The member of a gang. [default: 0]")
@click.option("--config", "as_config", is_flag=True, help="Print an entry for ~/.ssh/config, for editors and scp.")
@click.option("--stdio", is_flag=True, help="Connect stdin and stdout with the SSH server: for ProxyCommand.")
@click.option("--json", "as_json", is_flag=True, help="Print the host and the options for an SSH client as JSON.")
@click.argument("job")
@click.argument("command", nargs=-1, metavar="[[--] COMMAND...]")
def ssh(job: str, command: tuple[str, ...], rank: int | None, as_config: bool, as_json: bool, stdio: bool) -> int:
    """Open an SSH session on the node of the running JOB (id, name, or JOB.TASK), or run COMMAND there.

    The SSH server runs beside the task, with its environment and devices, and only for this connection. Its node needs
    openssh-server, which need not run. Nothing listens on the network: the connection goes through the control plane.
    """
    home = current_home()
    if stdio:
        return _stdio(home, job, rank)
    if (program := shutil.which("ssh")) is None:
        raise SpecError(
            "this machine has no `ssh`", field="ssh", hint="install openssh-client, or `poise exec -it JOB -- bash`"
        )
    options = _options(home, job, rank, _user(home, job, rank))
    if as_json:
        print_json({"host": f"poise-{job}", "options": options})
        return 0
    if as_config:
        click.echo("\n".join([f"Host poise-{job}", *(f"  {name} {value}" for name, value in options.items())]))
        return 0
    given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    if command[:1] == ("--",):
        command = command[1:]
    line = [program, *given, f"poise-{job}", *([shlex.join(command)] if command else [])]
    return subprocess.call(line)  # noqa: S603 — the SSH client


def _stdio(home: Home, job: str, rank: int | None) -> int:
    """Be the transport of an SSH client."""
    lines = connected(home).connect(job, key=_key(home).with_suffix(".pub").read_text().strip(), rank=rank)

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]

    with contextlib.closing(lines):
        return passed_on(home, lines, 0, write, lambda: os.close(1))


def _options(home: Home, job: str, rank: int | None, user: str) -> dict[str, str]:
    """Return the options of the SSH client. The channel is already authenticated in both directions, so the server has
    a new host key for each connection.
    """
    command = [sys.executable, str(Path(sys.argv[0]).absolute()), "ssh", "--stdio"]
    command += ["--rank", str(rank)] if rank is not None else []
    return {
        "ProxyCommand": shlex.join([*command, job]).replace("%", "%%"),
        "User": user,
        "IdentityFile": shlex.quote(str(_key(home))),
        "IdentitiesOnly": "yes",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "LogLevel": "ERROR",
    }


def _key(home: Home) -> Path:
    """Return the private key for sessions of this home; make it first if there is none."""
    path = home.ssh / "id_ed25519"
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (maker := shutil.which("ssh-keygen")) is None:
            raise SpecError("this machine has no `ssh-keygen`", field="ssh", hint="install openssh-client")
        made = subprocess.run(  # noqa: S603 — as above
            [maker, "-q", "-t", "ed25519", "-N", "", "-C", "poise", "-f", path],
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        if made.returncode and not path.exists():
            raise Fault(
                "no key can be made", have=made.stderr.decode("utf-8", "replace").strip(), hint=f"`ls -l {path.parent}`"
            )
    return path


def _user(home: Home, job: str, rank: int | None) -> str:
    """Return the name of the user as which the job runs: the only one who can log in."""
    said = b""
    lines = Client(home).exec(job, ["id", "-un"], rank=rank)
    with contextlib.closing(lines):
        for line in lines:
            if isinstance(line, ExecOutput):
                said += line.data
            elif isinstance(line, ExecEnd) and line.exit_code:
                raise Fault(
                    f"the user of {job} is not known", have=line.note or said.decode("utf-8", "replace").strip()
                )
    return said.decode().strip()
