"""`python -m poise.control.traces HOME --to URL`: exports a home's traces, in a process of its own.

It runs at low priority. The supervisor keeps it alive while the home exports traces.
"""

import argparse
import os
import sys
from pathlib import Path

from poise.config import Home
from poise.control.beside import Stop, run_beside
from poise.drivers.otlp import Collector
from poise.drivers.system import settle_memory
from poise.drivers.tracing import Exporter


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m poise.control.traces", description="the exporter of a home")
    parser.add_argument("home", type=Path)
    parser.add_argument("--to", required=True, metavar="URL", help="where spans are posted")
    options = parser.parse_args()
    home = Home(options.home.resolve())

    def work(stop: Stop) -> None:
        settle_memory()
        exporter = Exporter(home, Collector(options.to, os.environ), stopping=stop.asked, wake=stop.wake)
        try:
            exporter.run()
        finally:
            exporter.close()

    return run_beside(home.traces / "lock", "exporter of traces", "poise.traces", work)


if __name__ == "__main__":
    sys.exit(main())
