"""The HTTP API, by subject."""

from poise.control.api.app import make_app

__all__ = ["make_app"]
