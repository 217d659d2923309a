"""`poise dashboard`: serve the web dashboard from this process, and open a browser."""

import contextlib
import os
import sys
import threading
import time
import webbrowser
from html import escape
from typing import TYPE_CHECKING

import click

from poise.cli.numbers import WholeRange
from poise.cli.render import print_json, say
from poise.client import current_home
from poise.config import DASHBOARD_PORT, Home
from poise.control.kept import read_flags
from poise.control.start import connected, supervised
from poise.drivers.dashboards import found
from poise.drivers.lock import take_lock
from poise.drivers.security import ensure_home, token_for

if TYPE_CHECKING:
    from poise.drivers.dashboards import Running

RESTART_SECONDS = 10.0
"""Time limit for a supervised dashboard to be restarted after a crash."""


@click.command()
@click.option(
    "--port", type=WholeRange(0, 65535), default=DASHBOARD_PORT, show_default=True, metavar="N", help="0: a free port."
)
@click.option("--no-browser", is_flag=True, help="Print the link instead of opening a browser.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value once it listens: address and link.")
def dashboard(port: int, no_browser: bool, as_json: bool) -> int:
    """Show the fleet, the queue and jobs in a browser, live. It serves from this process, for this machine only, until
    Ctrl-C; the control plane may stop and restart meanwhile.

    A browser signs in with a link that works once, within 5 minutes, and sees what your token may see. While a
    dashboard runs already, as with `poise up --dashboard`, the command prints another link and returns. From another
    machine: `ssh -L 7719:127.0.0.1:7719 HOST`.
    """
    from poise.dashboard.serve import bind, new_link, serve
    from poise.dashboard.sessions import Viewer

    home = current_home()
    with connected(home) as client:
        tenant = client.whoami().tenant  # fails on a bad token before anything is opened
    opens = not no_browser and not as_json
    if url := _served(home):
        address = new_link(home, url)
        _tell(url, address, opens, as_json)
        if opens:
            _open(home, address)
        return 0

    def ready(running: "Running", address: str) -> None:
        _tell(running.url, address, opens, as_json)
        if opens:  # on a thread, because a browser in the terminal returns only when it exits
            threading.Thread(target=_open, args=(home, address), daemon=True).start()

    with bind(port) as listening, contextlib.ExitStack() as stack:
        stack.callback(home.dashboard_opener.unlink, missing_ok=True)
        if home.elsewhere is None:
            stack.enter_context(take_lock(home.dashboard, "dashboard"))
        serve(home, listening, viewer=Viewer(tenant, token_for(home)), ready=ready)
    return 0


def _served(home: Home) -> str:
    """Return the address of a running dashboard; empty if there is none."""
    if home.elsewhere is not None:
        from poise.dashboard.serve import served_elsewhere

        return served_elsewhere(home)
    deadline = time.monotonic() + RESTART_SECONDS
    while (running := found(home)) is None and _is_kept(home) and time.monotonic() < deadline:
        time.sleep(0.05)
    return running.url if running is not None else ""


def _is_kept(home: Home) -> bool:
    """Return whether the supervisor runs a dashboard, or is about to start one."""
    return "dashboard" in read_flags(home) and supervised(home)


def _tell(url: str, address: str, opens: bool, as_json: bool) -> None:
    if as_json:
        print_json({"url": url, "link": address})
    elif opens:
        say(f"poise: the dashboard is at {url}; if no browser opens: `poise dashboard --no-browser`")
    else:
        click.echo(address)
    sys.stdout.flush()


def _open(home: Home, address: str) -> None:
    """Open a browser on a file of this user, because a link as an argument would appear in the list of processes."""
    ensure_home(home)
    page = f'<!doctype html><title>Poise</title><meta http-equiv="refresh" content="0; url={escape(address)}">'
    with os.fdopen(os.open(home.dashboard_opener, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(page)
    if not webbrowser.open(home.dashboard_opener.as_uri()):
        say(f"poise: no browser could be opened; this link works once: {address}")
