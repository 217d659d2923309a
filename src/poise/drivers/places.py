"""Where the outputs of attempts are in a folder of logs."""

import hashlib
import re
from pathlib import Path

from poise.model.messages import Attempt

_ODD = re.compile(r"[^A-Za-z0-9._\-\[\]]")


def log_paths(logs: Path, attempt: Attempt) -> tuple[Path, Path]:
    """Where the output of an attempt is: `LOGS/<job>/<task>.<epoch>.out` and `.err`."""
    stem = log_stem(str(logs), attempt)
    return Path(stem + ".out"), Path(stem + ".err")


def log_stem(logs: str, attempt: Attempt) -> str:
    """The paths of both outputs without their endings."""
    job, _, task = attempt.task.partition(".")
    return f"{logs}/{plain_name(job)}/{plain_name(task)}.{attempt.epoch}"


def plain_name(name: str) -> str:
    """A name as one component of a path; an odd one becomes what it resembles, and a hash that tells it apart."""
    if name and len(name) <= 200 and name[0] != "." and not _ODD.search(name):
        return name
    return f"_{_ODD.sub('_', name)[:80]}-{hashlib.blake2s(name.encode(), digest_size=6).hexdigest()}"
