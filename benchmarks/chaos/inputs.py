"""Row 21: so many inputs that somebody has spoilt, for every reader of files, requests and frames."""

import json
import os
import subprocess
import sys

from chaos import TESTS
from chaos.turns import Stage, Turn


def bad_inputs(count: int, living: Stage) -> Turn:
    """What `make fuzz` does, from one seed: nothing unforeseen, no status of 500, and memory stays flat."""
    command = [sys.executable, "-m", "fuzz", "--count", str(count)]
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": paths})
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    assert json.loads(done.stdout)["failures"] == [], done.stdout
    return Turn()
