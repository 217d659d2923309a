"""Install the wheel in dist/ into a fresh environment, and use it as its first user does. Prints one JSON value.

It fails where a command fails, where the version differs from the wheel's, and where anything is left running.
"""

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20


def main() -> None:
    [wheel] = (ROOT / "dist").glob("poise_scheduler-*.whl")
    with tempfile.TemporaryDirectory(prefix="poise-release-") as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        packages_before, size_before = installed(place / "venv")
        pip = [str(place / "venv" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, str(wheel)], check=True)
        packages, size = installed(place / "venv")
        use(place, wheel.name.split("-")[1])
    print(json.dumps({"wheel": wheel.name, "packages": packages - packages_before, "MiB": round(size - size_before)}))


def installed(environment: Path) -> tuple[int, float]:
    """The packages in an environment, and its MiB on disk."""
    packages = len(list(environment.glob("lib/python*/site-packages/*.dist-info")))
    files = (path.lstat() for path in environment.rglob("*"))
    return packages, sum(file.st_blocks * 512 for file in files) / MIB


def use(place: Path, version: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": folder_of(place, "home"), "POISE_HOME": str(place / "poise")}
    work = folder_of(place, "work")

    def poise(*arguments: str) -> str:
        command = [str(place / "venv" / "bin" / "poise"), *arguments]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=120)
        if done.returncode:
            sys.exit(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    expect(poise("--version").split()[1], version)
    expect(poise("run", "--", "echo", "hello"), "hello\n")
    poise("demo", "--examples", "examples")
    job = poise("submit", "-q", "examples/hello.yaml").strip()
    poise("wait", job)
    expect(json.loads(poise("show", job, "--json"))["status"], "done")
    poise("schema", "job")
    poise("simulate", "--policy", "fifo", "--fleet", "examples/cluster.yaml", "--map", MAP, "examples/trace.csv")
    poise("down")


MAP = "submit=created,duration=seconds,gpus=gpus"
"""The columns of examples/trace.csv."""


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        sys.exit(f"{found!r}, where it should be {wanted!r}")


def folder_of(place: Path, name: str) -> str:
    (place / name).mkdir()
    return str(place / name)


if __name__ == "__main__":
    main()
