"""The files that commands of Unix accounts need on one node, and the devices that they may not see.

A home is closed to all users but its owner, so these files are outside of it: in a folder for each account, below
`ROOT` and the hash of the home. All folders above belong to root, so no account can replace one by a link. Each folder
that an account may write to belongs to it, with mode 0700. Checkpoints, gangs and the account's own state directory are
shared by the nodes of a home on this machine; results and the private /tmp belong to one node.

The state directory of an account holds what Poise keeps for its work: fetched files, copies of working trees,
environments, and values of calls. No account shares them with another, so none can change what another runs. Processes
of accounts reach the control plane by a socket in the folder of the home (`door_of`), where each request needs a key.
"""

import contextlib
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgspec

from poise.config import Home
from poise.drivers import owner
from poise.drivers.owner import USERS, Account, account_of, why_not
from poise.drivers.places import plain_name
from poise.drivers.tidy import remove_folder, remove_folders
from poise.model.resources import ANY_ACCOUNT, Device

ROOT = Path("/var/lib/poise")

MOST_NAMED = 256
"""Maximum number of accounts that a node lists; a node with more offers any account that it knows."""

NODES = {
    "nvidia": ("nvidia[0-9]*", "nvidia-caps/*"),
    "amd": ("kfd", "dri/renderD*", "dri/card*"),
    "ascend": ("davinci[0-9]*",),
    "": ("accel/*", "neuron[0-9]*", "habanalabs/*", "hl[0-9]*"),
}
"""Device nodes of accelerators in /dev, by maker."""

_JOB = re.compile(r"j[0-9]{1,18}")

_SETGID = 6
"""The capability; CAP_SETUID is the next one."""

_DEV = Path("/dev")
_GPUS = Path("/proc/driver/nvidia/gpus")


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """The request to run a command as an account; see `owner.py`."""

    account: str
    tmp: str = ""
    hide: tuple[str, ...] = ()
    refused: str = ""


class Places(NamedTuple):
    """The folders of an account on a node. `results` ends in a slash. `home` is its state directory, with the way to
    the control plane. The agent writes to `plans`, and gives each file there to the account.
    """

    account: Account
    results: str
    gangs: Path
    checkpoints: Path
    tmp: str
    home: Home
    plans: Path


class Accounts:
    """The folders of all accounts, for one node of a home."""

    def __init__(self, home: Home, node: str) -> None:
        self.root = root_of(home)
        self._home = home
        self._node = f"node-{plain_name(node)}"

    def ensure(self, name: str) -> Places:
        """Return the folders of an account, and create those that are missing. Raises `Refused` and OSError."""
        account = account_of(name)
        folder = self.root / plain_name(name)
        here = folder / self._node
        for above in (ROOT, self.root, folder, folder / "gangs", here, here / "plans"):
            _made(above, 0o711, 0, 0)
        own = (folder / "checkpoints", folder / "home", here / "results", here / "tmp")
        for place in own:
            _made(place, 0o700, account.uid, account.gid)
        checkpoints, state, results, tmp = own
        home = Home(state, self._home.elsewhere or door_of(self._home), self._home.others)
        return Places(account, f"{results}/", folder / "gangs", checkpoints, str(tmp), home, here / "plans")

    def tidy(self, held: Collection[str]) -> None:
        """Remove the private /tmp and the results of each account without an attempt on this node."""
        for folder in self.root.glob("*"):
            if folder.name not in {plain_name(name) for name in held}:
                remove_folder(folder / self._node)

    def jobs(self) -> list[str]:
        """Return the jobs that have left files in the state directories of accounts. An account may make folders of any
        name there.
        """
        found = {name for folder in self._kept() for name in os.listdir(folder) if _JOB.fullmatch(name)}  # noqa: PTH208
        return sorted(found)[:MOST_JOBS]

    def remove(self, jobs: Sequence[str]) -> None:
        """Remove the files of these jobs from the state directories of accounts."""
        for folder in self._kept():
            remove_folders((Path(f"/proc/self/fd/{folder}"),), jobs)

    def _kept(self) -> Iterator[int]:
        """Yield the folders of jobs, each opened without following links, because accounts may put links in their
        place.
        """
        for state in self.root.glob("*/home"):
            for name in KEPT:
                with contextlib.suppress(OSError), _opened(state, name) as folder:
                    yield folder


MOST_JOBS = 10_000

KEPT = ("work", "values")
"""Folders of a state directory with a folder for each job."""


def root_of(home: Home) -> Path:
    """Return the folder of the accounts of a home."""
    return ROOT / blake2b(os.fsencode(home.root.resolve()), digest_size=8).hexdigest()


def door_of(home: Home) -> Path:
    """Return the socket at which the control plane of a home listens to processes of accounts."""
    return root_of(home) / "door"


def make_root(home: Home) -> None:
    """Create the folder of the accounts of a home. Raises OSError."""
    for above in (ROOT, root_of(home)):
        _made(above, 0o711, 0, 0)


def barred(account: Account, path: Path) -> str:
    """Return the first folder in the path of a file that an account cannot enter, or the file if it cannot read and
    execute it; "" if it can.
    """
    for way in (path.absolute(), path.resolve()):
        if way.parts[:2] == ("/", "tmp") or way.parts[:3] == ("/", "var", "tmp"):
            return f"{way} (/tmp is private to the account)"
        for one in (*reversed(way.parents), way):
            state = one.stat()
            groups = account.groups
            shift = 6 if state.st_uid == account.uid else 3 if state.st_gid in groups else 0
            if not state.st_mode >> shift & 1:
                return str(one)
    return ""


@contextlib.contextmanager
def _opened(state: Path, name: str) -> Iterator[int]:
    """Open a folder of a state directory, and follow no link to it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    above = os.open(state, flags)
    try:
        folder = os.open(name, flags, dir_fd=above)
    finally:
        os.close(above)
    try:
        yield folder
    finally:
        os.close(folder)


def give(path: Path, account: Account) -> None:
    """Give a folder in a folder of root to an account, for it alone. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(fd, account.uid, account.gid)
        os.fchmod(fd, 0o700)
    finally:
        os.close(fd)


def _made(path: Path, mode: int, uid: int, gid: int) -> None:
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(fd, uid, gid)
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def offered() -> tuple[str, ...]:
    """Return the accounts as which commands can run here; `ANY_ACCOUNT` if a directory service may know more than this
    machine lists. Nothing without root, or where root may not change users.
    """
    if os.geteuid() != 0 or not _may_change_users():
        return ()
    known = _mapped()
    named = tuple(
        sorted({of.pw_name for of in pwd.getpwall() if not why_not(of) and any(of.pw_uid in ids for ids in known)})
    )
    return named if not _asks_others() and len(named) <= MOST_NAMED else (ANY_ACCOUNT,)


def _may_change_users() -> bool:
    """Return whether this process has CAP_SETUID and CAP_SETGID."""
    caps = Path("/proc/self/status").read_text().partition("CapEff:")[2].split(None, 1)[0]
    return int(caps, 16) >> _SETGID & 3 == 3


def _mapped() -> list[range]:
    """Return the user ids that exist in this user namespace: a container may have a few only."""
    lines = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return [range(int(first), int(first) + int(count)) for first, _, count in lines]


def lacking() -> tuple[str, ...]:
    """Return what the kernel does not grant a command that runs as an account. A process of its own tries it."""
    command = [sys.executable, "-I", "-S", owner.__file__]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)  # noqa: S603
    return tuple(done.stdout.splitlines()) if done.returncode == 0 else (f"{USERS}: {done.stderr.strip()[-200:]}",)


def _asks_others() -> bool:
    """Return whether accounts are looked up elsewhere than in files of this machine."""
    try:
        lines = Path("/etc/nsswitch.conf").read_text().splitlines()
    except OSError:
        return False
    sources = [word for line in lines if line.startswith("passwd:") for word in line.partition(":")[2].split()]
    return any(word not in ("files", "compat", "systemd") and not word.startswith("[") for word in sources)


def hidden(devices: Sequence[Device]) -> tuple[str, ...]:
    """Return the device nodes of accelerators that an attempt with these devices may not use. All nodes of a maker stay
    if it is unknown which belong to its devices.
    """
    makers = {device.maker for device in devices}
    found = []
    for maker, patterns in NODES.items():
        nodes = [node for pattern in patterns for node in _DEV.glob(pattern)]
        if maker not in makers and (maker or not devices):  # others may be those of a plug-in's devices
            found += nodes
        elif own := _own_nodes(maker, [device for device in devices if device.maker == maker]):
            found += [node for node in nodes if node.name not in own and node.parent == _DEV]
    return tuple(sorted(map(str, found)))


def _own_nodes(maker: str, devices: Sequence[Device]) -> set[str]:
    """Return the names of the device nodes of these devices of one maker; nothing if one of them is unknown."""
    if maker == "ascend":
        numbers = [device.index if device.driver_index is None else device.driver_index for device in devices]
        return {f"davinci{number}" for number in numbers}
    minors = _nvidia_minors() if maker == "nvidia" else {}
    own = {f"nvidia{minors[device.uuid]}" for device in devices if device.uuid in minors}
    return own if len(own) == len(devices) else set()


def _nvidia_minors() -> dict[str, str]:
    """Return the numbers of NVIDIA's device nodes by the devices' UUIDs."""
    found = {}
    for path in _GPUS.glob("*/information"):
        with contextlib.suppress(OSError):
            facts = dict(line.partition(":")[::2] for line in path.read_text().splitlines())
            values = {name.strip(): value.strip() for name, value in facts.items()}
            found[values.get("GPU UUID", "")] = values.get("Device Minor", "")
    return {uuid: minor for uuid, minor in found.items() if uuid and minor.isdigit()}
