"""Selects the checkpoint of the transformers Trainer to resume from.

The Trainer writes a checkpoint under its final name, and its own state last. If it is killed meanwhile, the checkpoint
is incomplete.
"""

import json
import re
import sys
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

_NAME = re.compile(r"checkpoint-([0-9]+)")
_PICKLED = (".pt", ".pth", ".bin")


def last_checkpoint(folder: str | Path) -> str | None:
    """The newest complete checkpoint in the folder; None without one, or without a folder. An incomplete one is
    skipped, with a line on stderr, and stays.
    """
    there = {path: _NAME.fullmatch(path.name) for path in Path(folder).glob("checkpoint-*") if path.is_dir()}
    steps = {path: int(name[1]) for path, name in there.items() if name}
    for path in sorted(steps, key=steps.__getitem__, reverse=True):
        if not (why := _lack(path)):
            return str(path)
        sys.stderr.write(f"poise: {path} is passed over: {why}\n")
    return None


def _lack(path: Path) -> str:
    """Return what a checkpoint lacks; empty if it is complete. The content of tensors is not read."""
    names = {"trainer_state.json", *(part.name for part in path.iterdir() if part.is_file())}
    for index in sorted(name for name in names if name.endswith(".index.json")):
        try:
            names |= {*json.loads((path / index).read_bytes())["weight_map"].values()}
        except (ValueError, LookupError, TypeError, AttributeError):
            return f"{index} is not whole"
    for name in sorted(names):
        if not (path / name).exists():
            return f"{name} is missing"
        if not _is_whole(path / name):
            return f"{name} is not whole"
    return ""


def _is_whole(part: Path) -> bool:
    try:
        if part.suffix == ".json":
            json.loads(part.read_bytes())
        elif part.suffix == ".safetensors":
            with safe_open(part, "pt"):  # compares the file length with the header
                pass
        elif part.suffix in _PICKLED:
            return zipfile.is_zipfile(part)  # PyTorch writes ZIP archives with the directory at the end
    except (OSError, ValueError, SafetensorError):
        return False
    return True


__all__ = ["last_checkpoint"]
