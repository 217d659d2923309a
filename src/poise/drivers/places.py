"""Paths of attempts' outputs in a folder of logs."""

import hashlib
import re
from pathlib import Path

from poise.model.messages import Attempt

_ODD = re.compile(r"[^A-Za-z0-9._\-\[\]]")


def log_paths(logs: Path, attempt: Attempt) -> tuple[Path, Path]:
    """Return the paths of an attempt's output: `LOGS/<job>/<task>.<epoch>.out` and `.err`."""
    stem = log_stem(str(logs), attempt)
    return Path(stem + ".out"), Path(stem + ".err")


def log_stem(logs: str, attempt: Attempt) -> str:
    """Return the common path of both outputs, without suffixes."""
    job, _, task = attempt.task.partition(".")
    return f"{logs}/{plain_name(job)}/{plain_name(task)}.{attempt.epoch}"


def plain_name(name: str) -> str:
    """Return a name as a safe component of a path; an unsafe name becomes a similar one with a hash."""
    if name and len(name) <= 200 and name[0] != "." and not _ODD.search(name):
        return name
    return f"_{_ODD.sub('_', name)[:80]}-{hashlib.blake2s(name.encode(), digest_size=6).hexdigest()}"
