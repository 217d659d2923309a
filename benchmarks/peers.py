"""Install the schedulers that Poise is compared with, and run one turn of each.

    python benchmarks/peers.py install [--folder .peers] [NAME ...]
    python benchmarks/peers.py list

Each peer has its own folder: a virtual environment for those in Python, unpacked Debian packages for Slurm. Nothing is
installed into the system. A peer that cannot be installed, or does not run, is reported as absent by name.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness

SCRIPTS = Path(__file__).parent / "peers"
FOLDER = Path(__file__).parent.parent / ".peers"
TURN_SECONDS = 300.0


@dataclass(frozen=True)
class Peer:
    """A peer. `script` takes a folder, a mode and a count; it prints the number of completed commands and the seconds.
    `killed` takes a folder, and `control` with a delay or `worker`; it prints the commands completed in the end, or the
    time of recovery. A peer without either is not a scheduler, and has its own script.
    """

    name: str
    script: str
    killed: str
    requirements: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


PEERS = {
    peer.name: peer
    for peer in (
        Peer("hyperqueue", "hyperqueue_jobs.py", "hyperqueue_killed.py", requirements=("hyperqueue==0.27.0",)),
        Peer("ray-jobs", "ray_jobs.py", "ray_killed.py", requirements=("ray[default]==2.60.0",)),
        Peer("slurm", "slurm_jobs.py", "slurm_killed.py", packages=("slurmctld", "slurmd", "slurm-client", "munge")),
        Peer("protobuf", "", "", requirements=("grpcio-tools==1.85.1",)),
        Peer("dask", "", "dask_killed.py", requirements=("distributed==2026.8.0", "bokeh==3.9.2")),
    )
}


class Absent(Exception):
    """The peer is unavailable; the text says why."""


@dataclass(frozen=True)
class Turn:
    count: int
    seconds: float


def python_of(folder: Path, peer: Peer) -> str:
    """Return the interpreter for the peer's script. Raises Absent if the peer is not installed."""
    if not (folder / peer.name / "installed").is_file():
        raise Absent("not installed: `python benchmarks/peers.py install`")
    return str(folder / peer.name / "bin" / "python") if peer.requirements else sys.executable


def turn(folder: Path, name: str, mode: str, count: int) -> Turn:
    """Start the peer, run `count` no-op commands on two slots, and stop it. Raises Absent if it does not work."""
    answer = ask(folder, name, PEERS[name].script, mode, str(count))
    if answer["done"] != count:
        raise Absent(f"only {answer['done']} of {count} commands ended well")
    return Turn(count, answer["seconds"])


def ask(folder: Path, name: str, script: str, *arguments: str) -> dict[str, Any]:
    """Run a script of the peer, return its output, and end all processes that it started. Raises Absent if it does not
    work.
    """
    python = python_of(folder, PEERS[name])
    mark = harness.new_mark()
    with tempfile.TemporaryDirectory(prefix="pb-", ignore_cleanup_errors=True) as work:
        process = subprocess.Popen(
            [python, str(SCRIPTS / script), str(folder / name), *arguments],
            cwd=work,
            env={**os.environ, **mark, "TMPDIR": work},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, errors = process.communicate(timeout=TURN_SECONDS)
        except subprocess.TimeoutExpired:
            raise Absent(f"no answer within {TURN_SECONDS:.0f} s") from None
        finally:
            harness.end_marked(mark, work)
            process.wait()
    if process.returncode != 0:
        raise Absent(f"failed: {(errors.strip().splitlines() or ['no message'])[-1][:200]}")
    answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return answer


def install(folder: Path, peer: Peer) -> None:
    """Install a peer. Raises Absent if this is impossible here."""
    own = folder / peer.name
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    if peer.requirements:
        _call([sys.executable, "-m", "venv", str(own)])
        _call([str(own / "bin" / "python"), "-m", "pip", "install", "--quiet", *peer.requirements])
    if peer.packages:
        _unpack(own, peer.packages)
    (own / "installed").touch()


def _unpack(own: Path, packages: tuple[str, ...]) -> None:
    """Unpack Debian packages, and the dependencies that this system lacks, into the peer's folder only."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Absent(f"it is taken from Debian's packages {', '.join(packages)}, and there is no apt-get here")
    with tempfile.TemporaryDirectory() as name:
        archives = Path(name)
        (archives / "partial").mkdir()
        options = ["-qq", "-y", "--no-install-recommends", "--download-only", "--reinstall"]
        options += ["-o", f"Dir::Cache::archives={archives}", "-o", "APT::Sandbox::User=root"]
        _call(["apt-get", *options, "install", *packages])
        for archive in sorted(archives.glob("*.deb")):
            _call(["dpkg-deb", "--extract", str(archive), str(own)])


def _call(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise Absent(f"`{Path(command[0]).name}` failed: {last[:200]}")


def main() -> int:
    parser = argparse.ArgumentParser(description="install or list the schedulers to measure beside")
    parser.add_argument("action", choices=("install", "list"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(PEERS)}; all when none is named")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    unknown = [name for name in options.names if name not in PEERS]
    if unknown:
        parser.error(f"no such peer: {', '.join(unknown)}")
    for name in options.names or PEERS:
        try:
            if options.action == "install":
                install(folder, PEERS[name])
            python_of(folder, PEERS[name])
            print(f"{name}: installed")
        except Absent as reason:
            print(f"{name}: absent ({reason})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
