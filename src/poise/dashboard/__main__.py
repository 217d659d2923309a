"""`python -m poise.dashboard HOME [--listen HOST:PORT]`: the dashboard that the supervisor runs.

`--listen` is the address at which the control plane listens to other machines; the dashboard then listens on that host
as well, by TLS with a certificate of the same authority. It prints no link: `poise dashboard` requests one.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

from poise.config import Home, parse_place
from poise.dashboard.serve import Beyond, bind_again, serve
from poise.drivers.lock import take_lock
from poise.errors import PoiseError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m poise.dashboard", description="the dashboard of one home")
    parser.add_argument("home", type=Path)
    parser.add_argument("--listen", help="HOST:PORT of the control plane for other machines")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    os.umask(0o077)
    home = Home(options.home.resolve())
    try:
        with take_lock(home.dashboard, "dashboard"), bind_again(home) as listening:
            serve(home, listening, beyond=_beyond(home, options.listen) if options.listen else None)
    except PoiseError as error:
        logging.getLogger("poise.dashboard").error("%s: %s %s", error.record.code, error, error.record.have)
        return error.exit_code
    return 0


def _beyond(home: Home, place: str) -> Beyond:
    from poise.drivers.authority import names_here, server_context  # slow import

    host, _ = parse_place(place, "--listen")
    names = names_here(host)
    return Beyond(bind_again(home, host), server_context(home, names, "dashboard"), names)


if __name__ == "__main__":
    sys.exit(main())
