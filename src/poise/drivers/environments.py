"""Python environments of a node, each built once from a lock file and shared by all attempts that name it.

An environment is identified by a hash of its lock file and the files that this includes, the Python version and the
platform; if the lock file names packages in the working tree, also of the tree's hash. It is built with `uv` if that is
in the PATH, else with `pip`. A lock prevents concurrent builds. A mark is written last: an environment without it is
incomplete and is built again. A running attempt holds a lock on its environment, and so does every process that it
starts, so it is not removed while in use. Its folders are read-only: an attempt that needs more packages needs another
lock file.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import itertools
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from poise.drivers.tidy import remove_folder
from poise.errors import Fault, InputError, SpecError

CODE = "E217"

MARK = ".complete"
KEPT = 30 * 86_400
"""Seconds for which an unused environment is kept."""

BUILD_SECONDS = 3600.0
"""Time limit for one step of a build."""

LOOK_SECONDS = 0.2
SAID = 500
"""Maximum length of the last line of output in an error."""

LOCK_FILES = ("uv.lock", "pyproject.toml")
"""Names of files with their own format; any other file is read as a pip requirements file."""


_NAME_FILES = {"-r": "--requirement", "-c": "--constraint", "-e": "--editable", "-f": "--find-links"}
_COMMENT = re.compile(r"(^|\s)#.*$")


class Environments:
    """The folder of environments. `alive` is called periodically during a build or a wait; `say` gets log messages."""

    def __init__(
        self, folder: Path, *, alive: Callable[[], None] = lambda: None, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._folder = folder
        self._alive = alive
        self._say = say

    def ensure(self, tree: Path, lock_file: str, tree_hash: str) -> dict[str, str]:
        """Return the variables of the environment for a lock file of a tree, and build it if it is missing. From now on
        this process and its children hold it. Raises PoiseError.
        """
        path = tree / lock_file
        key = _key(tree, path, lock_file, tree_hash)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._remove_old(key)
        place = self._folder / key
        with self._locked(place):
            if not _is_whole(place):
                self._build(place, path, lock_file)
            (place / MARK).touch()
        return {"VIRTUAL_ENV": str(place), "PATH": f"{place}/bin:{os.environ.get('PATH', os.defpath)}"}

    @contextlib.contextmanager
    def _locked(self, place: Path) -> Iterator[None]:
        """Hold an exclusive lock while it is built, then a shared one until this process and its children end."""
        file = os.open(f"{place}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                is_built = _is_whole(place)
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, (fcntl.LOCK_SH if is_built else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                    if is_built <= _is_whole(place):  # otherwise it was removed in between
                        break
                self._alive()
                time.sleep(LOOK_SECONDS)
            yield
            fcntl.flock(file, fcntl.LOCK_SH)
            os.set_inheritable(file, True)
        except BaseException:
            os.close(file)
            raise

    def _build(self, place: Path, path: Path, lock_file: str) -> None:
        remove_folder(place)
        uv, begun = shutil.which("uv"), time.monotonic()
        self._say(f"building a Python environment from {lock_file} with {'uv' if uv else 'pip'}")
        wanted = place.with_suffix(".txt")
        if uv:
            self._run([uv, "venv", "--quiet", "--no-project", "--python", sys.executable, str(place)], path.parent)
            install = [uv, "pip", "install", "--quiet", "--python", str(place / "bin" / "python")]
            if path.name == "uv.lock":
                export = [uv, "export", "--quiet", "--frozen", "--no-emit-project", "--no-dev", "--output-file"]
                self._run([*export, str(wanted)], path.parent)
                path = wanted
        else:
            if importlib.util.find_spec("pip") is None:
                what, hint = "this node has neither uv nor pip to build an environment", "install uv on the node"
                raise Fault(what, code=CODE, field="requirements", hint=hint)
            if path.name == "uv.lock":
                what, hint = "only uv reads a uv.lock, and this node has no uv", "`uv export -o requirements.txt`"
                raise Fault(what, code=CODE, field="requirements", hint=f"install uv on the node, or {hint}")
            self._run([sys.executable, "-m", "venv", "--without-pip", str(place)], path.parent)
            pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "--quiet"]
            install = [*pip, "--no-input", "--disable-pip-version-check"]
            if path.name == "pyproject.toml":
                wanted.write_text("\n".join(_dependencies(path)))
                path = wanted
        self._run([*install, "-r", str(path)], path.parent if path != wanted else None)
        wanted.unlink(missing_ok=True)
        for folder, _, _ in os.walk(place):
            Path(folder).chmod(0o555 if folder != str(place) else 0o755)
        (place / MARK).write_text(str(place))
        self._say(f"the environment is built, in {time.monotonic() - begun:.1f} s")

    def _run(self, command: list[str], folder: Path | None) -> None:
        """Run one step. If it fails, print its output, and raise an error with the last line."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_"))}
        with subprocess.Popen(  # noqa: S603 — uv or pip
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
        ) as process:
            said, deadline = b"", time.monotonic() + BUILD_SECONDS
            while True:
                try:
                    said, _ = process.communicate(timeout=LOOK_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    self._alive()
                    if time.monotonic() > deadline:
                        process.kill()
        if process.returncode:
            text = said.decode("utf-8", "replace").strip()
            self._say(text)
            raise InputError(
                "the Python environment cannot be built",
                code=CODE,
                field="requirements",
                have=(text.splitlines() or [""])[-1][:SAID],
                hint="`poise logs` shows all of it; try the lock file with the same Python on your machine",
            )

    def _remove_old(self, but: str) -> None:
        """Remove environments that have not been used for `KEPT` seconds and are not in use."""
        for lock in self._folder.glob("*.lock"):
            place = lock.with_suffix("")
            if place.name == but:
                continue
            try:
                used = (place / MARK).stat().st_mtime if (place / MARK).exists() else lock.stat().st_mtime
                if time.time() - used < KEPT:
                    continue
                file = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_folder(place)
                lock.unlink(missing_ok=True)
            except BlockingIOError:
                continue
            finally:
                os.close(file)


def _is_whole(place: Path) -> bool:
    """Return whether an environment was built completely and at this path: it does not work elsewhere."""
    try:
        return (place / MARK).read_text() == str(place)
    except OSError:
        return False


def _key(tree: Path, path: Path, lock_file: str, tree_hash: str) -> str:
    """Return the name of the environment. Raises SpecError for an invalid lock file."""
    made = hashlib.sha256()
    for part in (platform.python_version(), sys.implementation.name, platform.system(), platform.machine(), path.name):
        made.update(part.encode() + b"\0")
    names_the_tree = False
    for one in _files(tree, path, lock_file):
        content = one.read_bytes()
        made.update(content + b"\0")
        names_the_tree = names_the_tree or (one.name not in LOCK_FILES and _is_local(content))
    if names_the_tree:
        made.update(tree_hash.encode())
    return made.hexdigest()[:32]


def _files(tree: Path, path: Path, lock_file: str) -> list[Path]:
    """Return the lock file and the files that it includes."""
    found: list[Path] = []
    waiting = [path, *([path.with_name("pyproject.toml")] if path.name == "uv.lock" else [])]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        if not one.is_file() or not one.resolve().is_relative_to(tree.resolve()):
            what, hint = "the lock file is not in the files of the job", "`poise submit --sync` tells what is left out"
            have = str(one.relative_to(tree)) if one.is_relative_to(tree) else str(one)
            raise SpecError(what, code=CODE, field="requirements", need=lock_file, have=have, hint=hint)
        found.append(one)
        if one.name not in LOCK_FILES:
            for words in _lines(one.read_bytes()):
                for option, value in _options(words):
                    if option == "--editable":
                        what, hint = "an environment that jobs share cannot hold an editable package", "without `-e`"
                        raise SpecError(what, code=CODE, field="requirements", have=" ".join(words), hint=hint)
                    if option in ("--requirement", "--constraint"):
                        waiting.append(Path(os.path.normpath(one.parent / value)))
    return found


def _lines(content: bytes) -> Iterator[list[str]]:
    """Yield the words of each line as pip reads them, with continued lines and quotes."""
    for line in content.decode("utf-8-sig", "replace").replace("\\\r\n", "").replace("\\\n", "").splitlines():
        line = _COMMENT.sub("", line)
        try:
            words = shlex.split(line)
        except ValueError:
            words = line.split()
        if words:
            yield words


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield options that name files, by their long names, with their values. Handles abbreviations and joined
    values."""
    for word, after in itertools.zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if not equals:
            value = after
        for short, long in _NAME_FILES.items():
            if value and (name == short or (len(name) > len("--") and long.startswith(name))):
                yield long, value


def _is_local(content: bytes) -> bool:
    """Return whether a requirements file names packages by a path in the tree."""
    for words in _lines(content):
        if any(option == "--find-links" and "://" not in value for option, value in _options(words)):
            return True
        first = words[0]
        if first.startswith((".", "/", "file:")) or first.endswith((".whl", ".tar.gz")) or "file:" in " ".join(words):
            return True
    return False


def _dependencies(path: Path) -> list[str]:
    """Return the dependencies in a `pyproject.toml`."""
    try:
        project = tomllib.loads(path.read_text("utf-8")).get("project", {})
        needs = project.get("dependencies", [])
        if isinstance(needs, list) and all(isinstance(one, str) for one in needs):
            return list(needs)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError):
        pass
    what, hint = "the pyproject.toml has no list of dependencies", '[project] dependencies = ["numpy"]'
    raise SpecError(what, code=CODE, field="requirements", hint=hint)
