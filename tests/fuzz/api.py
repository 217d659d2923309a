"""`make schemathesis`: a real control plane against its own OpenAPI document, by the checks of `schemathesis.toml`.

python -m fuzz.api [OPTION OF `st run`]…
"""

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec

from fuzz.mutate import Request
from fuzz.target import Target, target
from poise.config import Endpoint

SETTINGS = Path(__file__).with_name("schemathesis.toml")
TOOL = Path(sys.executable).with_name("st")


def run(control: Target, options: list[str]) -> int:
    """The exit code of the tool, or 1 if the log says that something failed that no answer told of."""
    asked = Request(f"GET /v1/schema/openapi.json HTTP/1.1\r\nHost: poise\r\n{control.bearer}\r\n\r\n".encode(), True)
    document = control.root / "openapi.json"
    document.write_bytes(asyncio.run(control.exchange(asked)).partition(b"\r\n\r\n")[2])
    port = msgspec.json.decode(control.home.endpoint.read_bytes(), type=Endpoint).port
    command = [str(TOOL), "--config-file", str(SETTINGS), "run", str(document), "--url", f"http://127.0.0.1:{port}"]
    done = subprocess.run([*command, "--header", control.bearer, *options], cwd=control.root, check=False)
    complaint = control.complaint()
    sys.stderr.write(complaint)
    return done.returncode or int(bool(complaint))


if __name__ == "__main__":
    with target() as control:
        sys.exit(run(control, sys.argv[1:]))
