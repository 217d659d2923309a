"""Build the wheels and the source archive into dist/, from the tracked files as they are in the working tree.

`poise-scheduler` is all of it. `poise-client` is what a machine needs that only talks to a control plane elsewhere: the
modules that `CLIENT` imports when it is imported, which run on macOS and Windows too.

A development version holds the commit that it was built from, which `poise --version` prints.
"""

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAGE = ROOT / "build" / "stage"
DIST = ROOT / "dist"
PACKAGES = ROOT / "src"

CLIENT = (
    *(f"poise.cli.{name}" for name in ("main", "group", "complete", "completion", "schema", "directives")),
    *(f"poise.cli.{name}" for name in ("submit", "jobs", "logs", "nodes", "explain", "tokens", "events")),
    *(f"poise.cli.{name}" for name in ("change", "get", "login")),
    *(f"poise.{name}" for name in ("client", "sdk", "model.spec")),
    *(f"poise.drivers.{name}" for name in ("screen", "heartbeat", "bringing", "worktree", "signed")),
)
"""Commands of the light client, what they import when they need it, and the public names of `poise`."""

CLIENT_PROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "poise-client"
dynamic = ["version"]
description = "The client of Poise, an open scheduler for mixed fleets of AI accelerators"
readme = "README.md"
requires-python = ">=3.11"
license = "Apache-2.0"
license-files = ["LICENSE"]
dependencies = ["click>=8.1", "cloudpickle>=3.0", "msgspec>=0.19", "pyyaml>=6.0", "websockets>=15"]

[project.scripts]
poise = "poise.cli.main:main"

[tool.setuptools.dynamic]
version = {attr = "poise.__version__"}

[tool.setuptools.packages.find]
where = ["src"]

[tool.setuptools.package-data]
poise = ["py.typed", "commit", "cli/*.json"]
"""


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    stage(STAGE)
    if "dev" in version():
        (STAGE / "src" / "poise" / "commit").write_text(git("describe", "--always", "--dirty", "--abbrev=8"))
    build(STAGE)
    modules = needed(CLIENT)
    for folder in (STAGE / "src").glob("poise_*"):
        shutil.rmtree(folder)
    for path in sorted((STAGE / "src" / "poise").rglob("*.py")):
        if path.relative_to(STAGE / "src") not in modules:
            path.unlink()
    (STAGE / "pyproject.toml").write_text(CLIENT_PROJECT)
    shutil.rmtree(STAGE / "build")
    build(STAGE, "to.build_wheel")
    for built in sorted(DIST.iterdir()):
        print(built)


def stage(folder: Path) -> None:
    """Copy what git tracks: a build leaves nothing in the tree, and takes nothing from it that is not tracked."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in git("ls-files", "-z").split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def needed(modules: Iterable[str]) -> set[Path]:
    """The files of these modules and of all that are imported with them, relative to the folder of packages."""
    found: set[Path] = set()
    left = list(modules)
    while left:
        module = left.pop()
        path = next((path for path in _places(module) if (PACKAGES / path).exists()), None)
        if path is None or path in found:  # a name in a module, whose module is on the list too
            continue
        found.add(path)
        imported = [*_imported(ast.parse((PACKAGES / path).read_text()))]
        left += [*imported, *(name.rpartition(".")[0] for name in (module, *imported) if "." in name)]
    return found


def _places(module: str) -> tuple[Path, Path]:
    path = Path(*module.split("."))
    return path.with_suffix(".py"), path / "__init__.py"


def _imported(tree: ast.Module) -> Iterator[str]:
    """What a module imports of Poise when it is imported: at its top, and not for type checkers only."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.startswith("poise."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "poise":
            yield from (f"{node.module}.{one.name}" for one in node.names)


def build(folder: Path, how: str = "to.build_sdist({0}); to.build_wheel") -> None:
    code = f"from setuptools import build_meta as to; {how.format(repr(str(DIST)))}({str(DIST)!r})"
    DIST.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def version() -> str:
    for line in (ROOT / "src" / "poise" / "__init__.py").read_text().splitlines():
        if line.startswith("__version__"):
            return line.split('"')[1]
    raise ValueError("src/poise/__init__.py has no __version__")


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
