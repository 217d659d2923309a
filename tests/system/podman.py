"""Debian's own podman, as `make servers` unpacks it: with storage of its own, and an image of files of this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEBIAN = Path(sys.prefix).resolve() / "debian"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
IMAGE = "localhost/small:1"
PROGRAMS = ("sh", "cat", "env", "ls", "sleep", "id")

CONTAINERS = """
[engine]
conmon_path = ["{debian}/usr/bin/conmon"]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
helper_binaries_dir = ["{debian}/usr/libexec/podman"]
[engine.runtimes]
runc = ["{debian}/usr/sbin/runc"]
[containers]
seccomp_profile = "unconfined"
init_path = "{debian}/usr/libexec/podman/catatonit"
default_ulimits = ["nofile=1024:4096", "nproc=1024:1024"]
"""
STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "{at}/graph"\nrunroot = "{at}/run"\n'
TRUST = '{"default": [{"type": "insecureAcceptAnything"}]}'
OF_USERS = """[storage]
driver = "overlay"
rootless_storage_path = "$HOME/containers"
[storage.options.overlay]
ignore_chown_errors = "true"
"""
SCRIPT = """#!/bin/sh
export CONTAINERS_CONF={at}/containers.conf CONTAINERS_REGISTRIES_CONF={at}/registries.conf
if [ "$(id -u)" != 0 ]; then
  export CONTAINERS_STORAGE_CONF={at}/of-users.conf
  exec {debian}/usr/bin/podman "$@"
fi
export HOME={at}/home CONTAINERS_STORAGE_CONF={at}/storage.conf
exec unshare --mount sh -c 'mount -t overlay overlay -o lowerdir={debian}{libraries}:{libraries} {libraries} &&
  exec {debian}/usr/bin/podman "$@"' sh "$@"
"""
"""Podman's monitor starts podman without variables: a mount shows it the libraries where they are looked for. Other
users than root cannot mount, and need `LIBRARIES_OF` around them.
"""
LIBRARIES_OF = f"mount -t overlay overlay -o lowerdir={DEBIAN}{LIBRARIES}:{LIBRARIES} {LIBRARIES}"


class Podman:
    """A podman below the folder `at`. `bin` has its command, for a `PATH`. The test is skipped where it cannot run."""

    def __init__(self, at: Path) -> None:
        if not (DEBIAN / "usr/bin/podman").exists():
            pytest.skip("podman is not there: `make servers` fetches it from Debian's packages")
        if os.geteuid() != 0:
            pytest.skip("the test runs podman as root")
        self.bin, home = at / "bin", at / "home"
        (home / ".config/containers").mkdir(parents=True)
        self.bin.mkdir()
        (home / ".config/containers/policy.json").write_text(TRUST)
        (at / "containers.conf").write_text(CONTAINERS.format(debian=DEBIAN, at=at))
        (at / "storage.conf").write_text(STORAGE.format(at=at))
        (at / "of-users.conf").write_text(OF_USERS)
        (at / "registries.conf").write_text("")
        self._registries = at / "registries.conf"
        self.image = at / "image.tar"
        script = self.bin / "podman"
        script.write_text(SCRIPT.format(at=at, debian=DEBIAN, libraries=LIBRARIES))
        script.chmod(0o755)
        self.command = str(script)
        self._make_image(at)

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run([self.command, *arguments], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def trust(self, host: str) -> None:
        """Use a registry without TLS."""
        self._registries.write_text(f'[[registry]]\nlocation = "{host}"\ninsecure = true\n')

    def containers(self) -> list[str]:
        """The ids of all that it knows."""
        return self("ps", "--all", "--quiet").split()

    def _make_image(self, at: Path) -> None:
        root = at / "image"
        for name in PROGRAMS:
            _copy(Path("/bin") / name, root)
        libraries = subprocess.run(
            ["ldd", *(f"/bin/{name}" for name in PROGRAMS)], capture_output=True, text=True, check=True
        )
        for word in libraries.stdout.split():
            if word.startswith("/") and not word.endswith(":"):
                _copy(Path(word), root)
        (root / "of-the-image").write_text("inside\n")
        subprocess.run(["tar", "-C", str(root), "-cf", str(at / "image.tar"), "."], check=True)
        done = subprocess.run(
            [self.command, "import", "--quiet", str(at / "image.tar"), IMAGE],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"podman does not run here: {done.stderr.strip()}")
        tried = subprocess.run(
            [self.command, "run", "--rm", "--init", "--network=host", IMAGE, "sh", "-c", ":"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if tried.returncode:
            pytest.skip(f"podman cannot start a container here: {tried.stderr.strip()}")


def _copy(file: Path, root: Path) -> None:
    to = root / str(file).lstrip("/")
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(file.read_bytes())
    to.chmod(0o755)
