"""`python -m poise.control.traces HOME --to URL`: exports a home's traces, in a process of its own.

It runs at low priority. The supervisor keeps it alive while the home exports traces.
"""

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

from poise.config import Home
from poise.drivers.lock import take_lock
from poise.drivers.messages import Seldom
from poise.drivers.otlp import Collector
from poise.drivers.system import give_way, settle_memory
from poise.drivers.tracing import Exporter
from poise.errors import PoiseError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m poise.control.traces", description="the exporter of a home")
    parser.add_argument("home", type=Path)
    parser.add_argument("--to", required=True, metavar="URL", help="where spans are posted")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.addFilter(Seldom())
    os.umask(0o077)
    give_way()
    settle_memory()
    home = Home(options.home.resolve())
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    wakeup, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    try:
        with take_lock(home.traces / "lock", "exporter of traces"):
            exporter = Exporter(home, Collector(options.to, os.environ), stopping=lambda: stopping, wake=wakeup)
            try:
                exporter.run()
            finally:
                exporter.close()
    except PoiseError as error:
        logging.getLogger("poise.traces").error("%s: %s; %s", error.record.code, error, error.record.hint)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
