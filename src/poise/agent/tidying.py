"""Removes from this node the files of attempts whose jobs are gone."""

from poise.client import Client
from poise.config import Home
from poise.drivers.tidy import remove_folders


def remove_gone(home: Home) -> None:
    """Ask the control plane which jobs it no longer knows, and remove their folders. Raises PoiseError and OSError."""
    here = [path.name for path in home.work.iterdir()] if home.work.is_dir() else []
    if here:
        with Client(home, patience=0.0) as client:
            remove_folders((home.work,), client.gone_jobs(here))
