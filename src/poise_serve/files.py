"""Checks of the files that a service names. The command makes them before it imports what a gateway needs."""

from pathlib import Path

from poise.errors import InputError
from poise.model.servicefile import DeclaredService


def check_files(declared: DeclaredService, base: str) -> None:
    """Raise `InputError` if the Python file of a service or its canary does not exist. `base`: the default folder."""
    for one in filter(None, (declared, declared.canary)):
        file, folder = one.model.partition(":")[0], Path(one.folder or base)
        if file.endswith(".py") and not (folder / file).is_file():
            raise InputError("no such file", field=file, hint=f"ls {folder}")


__all__ = ["check_files"]
