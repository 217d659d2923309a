"""`poise login` and `logout`: sign in with a company account."""

import time

import click

from poise.cli.render import print_json, say
from poise.client import Client, current_home
from poise.errors import Denied, NotFound
from poise.model.reports.access import SignInCode, SignInReport
from poise.units import SECOND, format_duration

SLOWER = 5.0
"""Seconds to add to the interval if the issuer asks for slower polling (RFC 8628)."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def login(as_json: bool) -> int:
    """Sign in to the control plane of POISE_SOCKET or POISE_ADDRESS with your company account.

    Open the printed page in any browser, and enter the code. Later commands use the sign-in, and renew it. A token in
    POISE_TOKEN or POISE_TOKEN_FILE has precedence.
    """
    from poise.drivers.security import new_secret
    from poise.drivers.signed import Signed, elsewhere, keep

    home = current_home()
    elsewhere(home)
    secret = new_secret()
    with Client(home, token="") as client:
        begun = client.start_device_sign_in()
        say(f"poise: open {_shown(begun.whole_url or begun.url)}")
        say(f"poise: the code is {_shown(begun.user_code)}; continue only if the page shows it")
        told = _await(client, secret, begun)
    keep(home, Signed(secret=secret, expires=time.time() + told.lasts, lasts=told.lasts, refresh=told.refresh))
    if as_json:
        print_json(
            {"token": told.token, "name": told.name, "tenant": told.tenant, "role": told.role, "lasts": told.lasts}
        )
        return 0
    name, account = f" as {told.name}" if told.name else "", f", commands run as {told.account}" if told.account else ""
    renewed = "renewed while you use it" if told.refresh else "then sign in again"
    lasts = format_duration(round(told.lasts * SECOND))
    say(f"poise: signed in{name}: {told.role} of {told.tenant}{account}; for {lasts}, {renewed}")
    return 0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def logout(as_json: bool) -> int:
    """Revoke your sign-in at the control plane of POISE_SOCKET or POISE_ADDRESS. Your submitted jobs keep running."""
    from poise.drivers.signed import elsewhere, forget, signed_in

    home = current_home()
    where = elsewhere(home)
    found = signed_in(home)
    if found is None:
        raise NotFound("you are not signed in to this control plane", field=str(where), hint="`poise login`")
    token = ""
    try:
        with Client(home, token=found.secret) as client:
            token = client.sign_out(found.refresh)
    except Denied:
        say("poise: the token had already expired")
    forget(home)
    if as_json:
        print_json({"token": token})
    else:
        say(f"poise: signed out at {where}")
    return 0


def _await(client: Client, secret: str, begun: SignInCode) -> SignInReport:
    """Poll until the person has entered the code. Raises `Denied` if that takes too long."""
    interval, deadline = max(1.0, begun.interval), time.monotonic() + begun.expires_in
    while time.monotonic() + interval < deadline:
        time.sleep(interval)
        told = client.sign_in(secret, device_code=begun.device_code)
        if not told.pending:
            return told
        interval += SLOWER if told.slower else 0.0
    raise Denied("nobody entered the code in time", code="E135", hint="`poise login`")


def _shown(text: str) -> str:
    """Return a text of the issuer without characters that control a terminal."""
    return "".join(letter for letter in text if letter.isprintable())
