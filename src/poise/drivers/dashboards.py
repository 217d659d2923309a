"""Finds the running dashboard of a home."""

import msgspec

from poise.config import Home
from poise.decoding import json_decoder
from poise.drivers.lock import is_held


class Running(msgspec.Struct, frozen=True):
    """A running dashboard: its port on loopback, and its TLS port for other machines (0: none). With `kept`, the
    supervisor keeps it alive.
    """

    port: int
    beyond: int = 0
    kept: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def url_beside(self, scheme: str, host: str) -> str:
        """Return its URL for a browser that reached the control plane in this way; "" if it has none."""
        if scheme != "https":
            return self.url
        name = host[: host.rindex("]") + 1] if host.startswith("[") else host.partition(":")[0]
        return f"https://{name}:{self.beyond}/" if self.beyond else ""


def found(home: Home) -> Running | None:
    """Return the dashboard that runs on this machine for this home, or None."""
    return noted(home) if home.elsewhere is None and is_held(home.dashboard) else None


def noted(home: Home) -> Running | None:
    """Return the dashboard that runs or was killed, if it has written its endpoint; otherwise None."""
    try:
        return json_decoder(Running).decode(home.dashboard_endpoint.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None  # there is none, or it is starting
