"""Removes from this node the files of attempts whose jobs are gone."""

from collections.abc import Sequence

from poise.config import Home
from poise.drivers.accounts import Accounts
from poise.drivers.tidy import remove_folders


def remove_gone(home: Home, accounts: Accounts | None) -> None:
    """Ask the control plane which jobs it no longer knows, and remove their folders. Raises PoiseError and OSError."""
    here = {path.name for path in home.work.iterdir()} if home.work.is_dir() else set()
    here.update(accounts.jobs() if accounts is not None else ())
    if here:
        from poise.client import Client  # slow to import, and most agents start with nothing to remove

        with Client(home, patience=0.0) as client:
            remove_of(home, accounts, client.gone_jobs(sorted(here)))


def remove_of(home: Home, accounts: Accounts | None, jobs: Sequence[str]) -> None:
    """Remove the files of attempts of these jobs."""
    remove_folders((home.work,), jobs)
    if accounts is not None:
        accounts.remove(jobs)
