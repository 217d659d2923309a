"""Build the wheel and the source archive into dist/, from the tracked files as they are in the working tree.

A development version holds the commit that it was built from, which `poise --version` prints.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAGE = ROOT / "build" / "stage"
DIST = ROOT / "dist"


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    stage(STAGE)
    if "dev" in version():
        (STAGE / "src" / "poise" / "commit").write_text(git("describe", "--always", "--dirty", "--abbrev=8"))
    build(STAGE)
    for built in sorted(DIST.iterdir()):
        print(built)


def stage(folder: Path) -> None:
    """Copy what git tracks: a build leaves nothing in the tree, and takes nothing from it that is not tracked."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in git("ls-files", "-z").split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def build(folder: Path) -> None:
    code = f"from setuptools import build_meta as to; to.build_sdist({str(DIST)!r}); to.build_wheel({str(DIST)!r})"
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
