"""The folder of an attempt that brings its files along, and the plan by which `poise.agent.prepare` fills it."""

import fcntl
import os
import shutil
import sys
from pathlib import Path

import msgspec

from poise.config import Home
from poise.drivers.accounts import Places, barred
from poise.drivers.owner import Account, Refused
from poise.drivers.tellings import MOST_NOTED, failure_path, plan_path
from poise.drivers.tidy import SPARE, remove_folder
from poise.drivers.whole import write_whole
from poise.model.messages import Attempt, Launch
from poise.model.trees import Tree


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The connection of an attempt to the control plane, its key, and the destination of its files. `failure` is the
    file for the reason if they cannot be created; `progress` is the file to touch meanwhile (empty: none). An attempt
    of an account connects to a `socket`, or to the addresses.
    """

    attempt: Attempt
    tree: Tree
    key: str
    folder: str
    root: str
    failure: str
    addresses: str = ""
    control: str = ""
    socket: str = ""
    progress: str = ""


PREPARE = (
    "import os, sys; sys.path[:] = sys.argv.pop(1).split(os.pathsep); "
    "from poise.agent.prepare import main; sys.exit(main())"
)
"""Runs `poise.agent.prepare`, isolated: the folder of the attempt and variables of the job may name modules too."""


NOT_PLANNED = "E216: there is no room for the files of the job (the disk of the state directory is full)"
"""The reason of an attempt of which the plan could not be written."""


def work_folder(home: Home, attempt: Attempt) -> Path:
    """The copy of the working tree of an attempt."""
    job, _, task = attempt.task.partition(".")
    return home.work / job / f"{task}.{attempt.epoch}"


def held(folder: Path) -> None:
    """Lock the copy of an attempt while this process or any of its child processes runs."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(file, fcntl.LOCK_SH)
    os.set_inheritable(file, True)


def make_room(work: Path, size: int) -> None:
    """Remove the oldest copies of attempts that have ended, until there is room for `size` more bytes beside a
    twentieth of the disk.
    """

    def is_enough() -> bool:
        disk = shutil.disk_usage(work)
        return disk.free - size >= disk.total // SPARE

    if is_enough():
        return
    locks = [(path.stat().st_mtime, path) for path in work.glob("*/*.lock")]
    for _, path in sorted(locks):
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            remove_folder(path.with_suffix(""))
            path.unlink(missing_ok=True)
        finally:
            os.close(file)
        if is_enough():
            return


def planned(
    home: Home, launch: Launch, key: str, result: str, places: Places | None = None, *, files: str = ""
) -> tuple[str, ...]:
    """Write the plan of an attempt. Returns the folder of its command, and what goes before the command; nothing for an
    attempt that runs in the folder that it names: it brings no files, or it was submitted where this node sees that
    folder. Where the disk is full there is no plan, which the attempt finds out.

    An attempt of an account has `places`: its files are in the state directory of the account, and only the account
    makes folders there. The plan itself is in a folder of root, beside `files` instead of beside the `result`. Raises
    `Refused` if the account cannot run the program that fetches the files.
    """
    if launch.tree is None or (home.elsewhere is None and not launch.tree.everywhere):
        return ()
    own, files = (home, result) if places is None else (places.home, files)
    if places is not None:
        check_reads(places.account)
    folder = work_folder(own, launch.attempt)
    inner = folder / launch.tree.folder
    plan = Plan(
        attempt=launch.attempt,
        tree=launch.tree,
        key=key,
        folder=str(folder),
        root=str(own.root),
        failure=failure_path(files),
        addresses=own.addresses,
        control=os.environ.get("POISE_CONTROL", ""),
        socket=str(own.elsewhere) if isinstance(own.elsewhere, Path) and places is not None else "",
        progress=result.removesuffix(".json") + ".progress" if launch.hang else "",
    )
    try:
        if places is None:
            inner.mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(plan.failure).write_bytes(b" " * MOST_NOTED)
        write_whole(Path(plan_path(files)), msgspec.json.encode(plan), mode=0o600)
        if places is not None:
            for path in (plan.failure, plan_path(files)):
                os.chown(path, places.account.uid, places.account.gid)
    except OSError:
        inner = own.root
    return str(inner), sys.executable, "-I", "-c", PREPARE, _import_path(), plan_path(files), "--"


def check_reads(account: Account) -> None:
    """Raise `Refused` unless an account can run this Python and this Poise."""
    for path in (Path(sys.executable), Path(__file__).parent):
        try:
            why = barred(account, path)
        except OSError as error:
            why = str(error)
        if why:
            what = f"the account `{account.name}` cannot run this node's Poise, which fetches the files of the job"
            raise Refused(f"{what}: {why}; install Poise where all users can read it")


def _import_path() -> str:
    """Return this agent's module search path, without the folder in which it was started."""
    here = str(Path(__file__).resolve().parents[2])
    others = [place for place in sys.path if place not in ("", here, str(Path.cwd()))]
    return os.pathsep.join([here, *others])
