"""The dashboard of a home, as other processes find it."""

import msgspec

from poise.config import Home
from poise.decoding import json_decoder
from poise.drivers.lock import is_held


class Running(msgspec.Struct, frozen=True):
    """A dashboard that runs: its port on loopback, and that at which other machines reach it by TLS (0: none). `kept`:
    the supervisor keeps it.
    """

    port: int
    beyond: int = 0
    kept: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def url_beside(self, scheme: str, host: str) -> str:
        """Its address for a browser that has reached the control plane in this way; empty where it has none."""
        if scheme != "https":
            return self.url
        name = host[: host.rindex("]") + 1] if host.startswith("[") else host.partition(":")[0]
        return f"https://{name}:{self.beyond}/" if self.beyond else ""


def found(home: Home) -> Running | None:
    """The dashboard that runs on this machine for this home."""
    return noted(home) if home.elsewhere is None and is_held(home.dashboard) else None


def noted(home: Home) -> Running | None:
    """The one that runs, or that was killed, as far as it has said where it serves."""
    try:
        return json_decoder(Running).decode(home.dashboard_endpoint.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None  # there is none, or it is just beginning
