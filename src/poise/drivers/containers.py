"""Run the command of a task in a container of its image, by podman.

The container is one more process under the keeper of the attempt, so nothing else changes: `podman run` stays in front,
passes signals on and ends with the code of the command. It gets the folders of the attempt under their own paths, the
network of the node, and by CDI only the devices of the attempt. If the keeper kills what is left, podman's monitor and
the container are among its descendants.

A container that was killed stays in podman's records. `forget` removes it, and after a crash of the agent, `left_over`
finds those of its node.
"""

import logging
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from poise.model.messages import Attempt
from poise.model.resources import Device

LABEL = "io.poise.node"
"""Label of a container: the folder of the node that started it."""

_log = logging.getLogger("poise.agent")

SECONDS = 30.0
"""Time limit for podman to answer."""

OF_PODMAN = ("HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""Variables that podman needs, of the user that it runs for."""

_OF_THE_IMAGE = frozenset(("PATH", *OF_PODMAN))
"""Variables that are not passed on: in the container they are those of the image."""


def engine() -> str:
    """Return the path of podman, or "" where it is not installed."""
    return shutil.which("podman") or ""


def wrapped(
    podman: str,
    image: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    folder: str,
    shared: Iterable[str],
    devices: Sequence[Device],
    memory: int,
    node: str,
    name: str,
) -> tuple[str, ...]:
    """Return the command that runs `argv` in a container of `image`.

    `env` is the environment of this command: podman passes each variable on by its name, so no value is in a command
    line. `shared` are folders of the host that the container sees under their own paths, besides `folder`, where the
    command begins ("": the folder of the image). `memory` is in bytes (0: no limit). `node` and `name`
    mark the container. Devices of Ascend have no CDI name, and are left out.
    """
    options = ["run", "--rm", "--init", "--pull=missing", "--network=host", f"--label={LABEL}={node}", f"--name={name}"]
    options += [f"--env={variable}" for variable in env if variable not in _OF_THE_IMAGE]
    options += [f"--volume={path}:{path}" for path in dict.fromkeys((*shared, folder)) if path]
    options += [f"--workdir={folder}"] if folder else []
    options += [f"--memory={memory}", f"--memory-swap={memory}"] if memory else []
    options += [f"--device={_cdi_name(device)}" for device in devices if device.maker != "ascend"]
    return (podman, *options, image, *argv)


def _cdi_name(device: Device) -> str:
    number = device.index if device.driver_index is None else device.driver_index
    return f"{device.maker}.com/gpu={device.uuid or number if device.maker == 'nvidia' else number}"


def name_of(node: str, attempt: Attempt) -> str:
    """Return the name of the container of an attempt: names of tasks have other characters than podman allows."""
    return "poise-" + blake2b(f"{node} {attempt.task} {attempt.epoch}".encode(), digest_size=12).hexdigest()


def left_over(podman: str, node: str) -> list[str]:
    """Return the names of all containers of a node that podman knows."""
    return _asked(podman, "ps", "--all", f"--filter=label={LABEL}={node}", "--format={{.Names}}").split()


def forget(podman: str, names: Iterable[str]) -> None:
    """End and remove these containers, if they are there."""
    _asked(podman, "rm", "--force", "--ignore", "--time=0", *names)


def _asked(podman: str, *arguments: str) -> str:
    """Return podman's answer; "" where it has none. What it cannot do now is done after the next start."""
    try:
        done = subprocess.run(  # noqa: S603 — podman, found by its name
            [podman, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("podman does not answer: %s", error)
        return ""
    return done.stdout
