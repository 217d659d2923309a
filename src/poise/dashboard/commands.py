"""Runs slow commands of Poise for pages: each in a separate process of lower priority."""

import os
import subprocess
import sys
from typing import Any

import msgspec

from poise.config import Home
from poise.errors import Fault, SpecError

ENDS = 120.0
"""Timeout of such a process in seconds."""

_PROGRAM = """import os, sys
if sys.argv.pop(1) == "last":
    from poise.drivers.system import give_way
    give_way()
else:
    os.nice(5)
from poise.cli.main import main
sys.exit(main(sys.argv[1:]))"""


def printed_by(home: Home, words: list[str], *, last: bool = False) -> Any:
    """Return the JSON that a command prints for the owner of the home. `last`: it runs only when the machine is idle,
    and may take long on a busy one. Raises `SpecError` if the command refuses its input, and `Fault` if it fails.
    """
    environ = {name: value for name, value in os.environ.items() if name not in ("POISE_TOKEN", "POISE_TOKEN_FILE")}
    try:
        done = subprocess.run(  # noqa: S603 — our own program
            [sys.executable, "-c", _PROGRAM, "last" if last else "soon", *words],
            env=environ | {"POISE_HOME": str(home.root)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ENDS,
            check=False,
        )
        told = msgspec.json.decode(done.stdout)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        raise Fault(f"`poise {words[0]}` has failed: {error}", hint=f"`poise {' '.join(words)}`") from None
    if done.returncode == 0:
        return told
    refused = told["error"]
    raise SpecError(refused["message"], field=refused.get("field", ""), have=refused.get("have", ""))
