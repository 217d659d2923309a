"""Run the command of a task in a container of its image, by podman.

The container is one more process under the keeper of the attempt, so nothing else changes: `podman run` stays in front,
passes signals on and ends with the code of the command. It gets the folders of the attempt under their own paths, the
network of the node, and only the devices of the attempt: by CDI, or Ascend's by their device files. If the keeper kills
what is left, podman's monitor and the container are among its descendants.

A container of a Unix account is rootless: podman runs with the rights of the account only, and in the container its
user 0 is the account. Its image is in the account's own storage, pulled with the credentials of the account.

A container that has ended stays in podman's records until `forget` removes it, because only the records show that its
memory ran out (`ran_out`). After a crash of the agent, `left_over` finds the containers of its node. podman itself
removes a rootless container when it ends.
"""

import contextlib
import logging
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec

from poise.decoding import json_decoder
from poise.drivers.kernellog import ran_out_of_memory
from poise.model.jobs import Ending
from poise.model.messages import Attempt
from poise.model.resources import CONTAINERS, MOST_IMAGES, ROOTLESS, Device, contained, image_mark
from poise.model.tenants import DEFAULT

LABEL = "io.poise.node"
"""Label of a container: the folder of the node that started it."""

_log = logging.getLogger("poise.agent")

OF_OWN_STORAGE = ("--pull=missing",)
"""Options for podman to get an image for an account: images in its storage were pulled by the account itself."""

QUIETLY = ("--log-level=fatal",)
"""Hides podman's warning at each start without subordinate ids, which need a setuid program. Errors are still shown."""

IN_OWN_NAMESPACES = (
    "/bin/sh",
    "-c",
    "u=$(id -u); "
    'rm -f "${XDG_RUNTIME_DIR:-/run/user/$u}/libpod/tmp/pause.pid" "/tmp/podman-run-$u/libpod/tmp/pause.pid"; '
    'exec "$@"',
    "sh",
)
"""Runs a rootless podman in new namespaces. Otherwise, it would join those of an earlier podman, which may see other
devices.
"""

SECONDS = 30.0
"""Time limit for podman to answer."""

OF_PODMAN = ("HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""Variables that podman needs, of the user that it runs for."""

_CDI_KIND = re.compile(r"""(?:^|[\s{,])["']?kind["']?\s*:\s*["']?([\w.-]+/[\w.-]+)""")

_OF_THE_IMAGE = frozenset(("PATH", *OF_PODMAN))
"""Variables that are not passed on: in the container they are those of the image."""

CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Folders in which podman looks for files that name devices (CDI)."""

ASCEND_MANAGER = "/dev/davinci_manager"
ASCEND_DEVICES = (ASCEND_MANAGER, "/dev/devmm_svm", "/dev/hisi_hdc")
"""Device files that every Ascend device needs beside its own, `/dev/davinci3`."""

ASCEND_FILES = (
    "/usr/local/Ascend/driver",
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/etc/ascend_install.info",
)
"""Files of the driver that programs in the container load."""

NO_CREDENTIALS = ".none.json"
"""The file for tenants that have no credentials; no tenant's name begins with a dot."""

KILLED = 128 + 9
"""The exit code of podman when the command was killed."""


def engine() -> str:
    """Return the path of podman, or "" where it is not installed."""
    return shutil.which("podman") or ""


def labels(
    devices: Sequence[Device],
    folders: Sequence[Path] = CDI_FOLDERS,
    manager: Path = Path(ASCEND_MANAGER),
    *,
    rootless: bool = False,
) -> dict[str, str]:
    """Return the labels of a node with podman and these devices. They show that it runs containers, whether also for
    accounts (`rootless`), and which kinds of device it can pass to containers completely.
    """
    named = _named(folders)
    passes = {"nvidia": "nvidia.com/gpu" in named, "amd": "amd.com/gpu" in named, "ascend": manager.exists()}
    kinds = {device.kind: True for device in devices}
    for device in devices:
        kinds[device.kind] &= passes[device.maker]
    own = {ROOTLESS: "yes"} if rootless else {}
    return CONTAINERS | own | {contained(kind): "yes" for kind, can in kinds.items() if can}


def are_rootless(kernel: Path = Path("/proc/sys")) -> bool:
    """Return whether this kernel lets unprivileged users create the namespaces of a container."""
    limits = {"user/max_user_namespaces": "0", "kernel/unprivileged_userns_clone": "0"}
    limits |= {"kernel/apparmor_restrict_unprivileged_userns": "1"}
    for name, forbids in limits.items():
        with contextlib.suppress(OSError):
            if (kernel / name).read_text().strip() == forbids:
                return False
    return True


def _named(folders: Iterable[Path]) -> set[str]:
    """Return the kinds of device that the CDI files of these folders name."""
    found = set()
    for folder in folders:
        for path in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"), *folder.glob("*.json"))):
            try:
                found.update(_CDI_KIND.findall(path.read_text(errors="replace")))
            except OSError as error:
                _log.warning("`%s` cannot be read: %s", path, error.strerror)
    return found


def wrapped(
    podman: str,
    image: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    pull: Sequence[str] = (),
    folder: str,
    shared: Iterable[str],
    devices: Sequence[Device],
    memory: int,
    node: str,
    name: str,
    rootless: bool = False,
) -> tuple[str, ...]:
    """Return the command that runs `argv` in a container of `image`.

    `env` is the environment of this command: podman passes each variable on by its name, so no value is in a command
    line. `pull` are the options with which podman gets the image (`pulled`). `shared` are folders of the host that the
    container sees under their own paths, besides `folder`, where the command begins ("": the folder of the image).
    `memory` is in bytes (0: no limit); that of a `rootless` container is limited by the keeper. `node` and `name` mark
    the container.
    """
    options = [*QUIETLY, "run", "--rm", "--init"] if rootless else ["run", "--init"]
    options += [*pull, "--network=host", f"--label={LABEL}={node}", f"--name={name}"]
    options += [f"--env={variable}" for variable in env if variable not in _OF_THE_IMAGE]
    options += [f"--volume={path}:{path}" for path in dict.fromkeys((*shared, folder)) if path]
    options += [f"--workdir={folder}"] if folder else []
    options += [f"--memory={memory}", f"--memory-swap={memory}"] if memory and not rootless else []
    options += [f"--device={name}" for name in _names(devices)]
    if any(device.maker == "ascend" for device in devices):
        options += [f"--volume={path}:{path}:ro" for path in ASCEND_FILES if Path(path).exists()]
    return (*(IN_OWN_NAMESPACES if rootless else ()), podman, *options, without_tag(image), *argv)


def _names(devices: Sequence[Device]) -> list[str]:
    """Return the names of devices for podman: by CDI, or the device files of Ascend."""
    names, ascend = [], []
    for device in devices:
        number = device.index if device.driver_index is None else device.driver_index
        if device.maker == "ascend":
            ascend.append(f"/dev/davinci{number}")
        else:
            names.append(f"{device.maker}.com/gpu={device.uuid or number if device.maker == 'nvidia' else number}")
    return [*names, *ascend, *(ASCEND_DEVICES if ascend else ())]


class _Image(msgspec.Struct):
    names: list[str] | None = msgspec.field(name="Names", default=None)
    digests: list[str] | None = msgspec.field(name="RepoDigests", default=None)


class Stock:
    """The images of this user's podman. podman is called only if the file that lists them has changed."""

    def __init__(self) -> None:
        self._list: Path | None = None
        self._seen: tuple[int, int] | None = None
        self._marks: tuple[str, ...] = ()

    def marks(self, podman: str) -> tuple[str, ...]:
        """Return the marks of these images, by name and by digest; at most `MOST_IMAGES`."""
        if self._list is None:
            told = _asked(podman, "info", "--format={{.Store.GraphRoot}}/{{.Store.GraphDriverName}}-images/images.json")
            if not told.strip():
                return ()
            self._list = Path(told.strip())
        try:
            state = self._list.stat()
        except OSError:
            return ()
        if self._seen != (state.st_mtime_ns, state.st_size):
            self._seen = state.st_mtime_ns, state.st_size
            with contextlib.suppress(msgspec.DecodeError):
                found = _images.decode(_asked(podman, "images", "--format=json") or "[]")
                names = [name for image in found for name in (*(image.names or ()), *(image.digests or ()))]
                self._marks = tuple(sorted({image_mark(name) for name in names})[:MOST_IMAGES])
        return self._marks


_images = json_decoder(list[_Image])


def prepare(registries: Path) -> None:
    """Make the folder of credentials, and those of tenants that have none."""
    registries.mkdir(mode=0o700, parents=True, exist_ok=True)
    (registries / NO_CREDENTIALS).write_text("{}\n")


def pulled(image: str, tenant: str, registries: Path) -> tuple[str, ...]:
    """Return the options for podman to get the image of a tenant's task. A tenant has the credentials in its own file;
    the default tenant without one has those of this user.

    podman checks the credentials at each start, even if the node has the image, because another tenant may have pulled
    it. This also applies to the default tenant if another tenant has credentials here. An image without a registry was
    built on this node, and all tenants may use it.
    """
    file = registries / f"{tenant}.json"
    if image.startswith("localhost/"):
        return ("--pull=missing",)
    if tenant == DEFAULT and not file.exists():
        others = any(path.name != NO_CREDENTIALS for path in registries.glob("*.json"))
        return ("--pull=always",) if others else ("--pull=missing",)
    return ("--pull=always", f"--authfile={file if file.exists() else registries / NO_CREDENTIALS}")


def fetching(podman: str, image: str, tenant: str, registries: Path) -> tuple[str, ...]:
    """Return the command that fetches an image into the storage of this user, for a tenant."""
    login = [option for option in pulled(image, tenant, registries) if option.startswith("--authfile")]
    return (podman, "pull", "--quiet", *login, without_tag(image))


def without_tag(image: str) -> str:
    """Return the name of an image without its tag if it has a digest, because podman refuses names with both."""
    name, at, digest = image.partition("@")
    first, slash, rest = name.rpartition("/")
    return f"{first}{slash}{rest.partition(':')[0]}{at}{digest}" if digest else image


def ran_out(podman: str, name: str) -> bool:
    """Return whether the kernel killed a process of this container because its memory ran out. podman misses it on some
    kernels with cgroups of version 1; the kernel log names the cgroup.
    """
    told = _asked(podman, "inspect", "--type=container", "--format={{.State.OOMKilled}} {{.Id}}", name).split()
    return told[:1] == ["true"] or (len(told) == 2 and ran_out_of_memory(f"libpod-{told[1]}"))


def may_have_run_out(ending: Ending) -> bool:
    """Return whether a container with this ending may have been killed because its memory ran out."""
    return ending.outcome == "failed" and ending.code == KILLED and ending.limit > 0


def name_of(node: str, attempt: Attempt) -> str:
    """Return the name of the container of an attempt: names of tasks have other characters than podman allows."""
    return "poise-" + blake2b(f"{node} {attempt.task} {attempt.epoch}".encode(), digest_size=12).hexdigest()


def left_over(podman: str, node: str) -> list[str]:
    """Return the names of all containers of a node that podman knows."""
    return _asked(podman, "ps", "--all", f"--filter=label={LABEL}={node}", "--format={{.Names}}").split()


def forget(podman: str, names: Iterable[str]) -> bool:
    """End and remove these containers, if they are there. Return whether podman has done it."""
    names = list(names)
    done = _called(podman, "rm", "--force", "--ignore", "--time=0", *names)
    if done is not None and done.returncode != 0:
        _log.warning("podman has not removed %s: %s", ", ".join(names), done.stderr.strip())
    return done is not None and done.returncode == 0


def _asked(podman: str, *arguments: str) -> str:
    """Return podman's answer; "" where it has none."""
    done = _called(podman, *arguments)
    return "" if done is None else done.stdout


def _called(podman: str, *arguments: str) -> "subprocess.CompletedProcess[str] | None":
    """Call podman; None if it does not answer."""
    try:
        return subprocess.run(  # noqa: S603 — podman, found by its name
            [podman, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("podman does not answer: %s", error)
        return None
