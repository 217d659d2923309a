"""Two workers of a gang, each in a process of its own, as Poise starts them."""

import os
import subprocess
import sys
from pathlib import Path

SECONDS = 180


def work(script: str, folder: Path, **environ: str) -> list[str]:
    """Run a script on both, with the folder as its argument; what each said. All must end well."""
    (folder / "gang").mkdir()
    environ = {"POISE_WORLD_SIZE": "2", "POISE_GANG_DIR": str(folder / "gang"), "OMP_NUM_THREADS": "1", **environ}
    workers = [
        subprocess.Popen(
            [sys.executable, script, str(folder)],
            env={**os.environ, **environ, "POISE_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [worker.communicate(timeout=SECONDS)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(said)
    return said
