"""`poise get JOB:PATH [DEST]`: copy files of a task from its node."""

import io
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from poise.cli.numbers import WholeRange
from poise.cli.render import print_json, say
from poise.client import current_home
from poise.control import start
from poise.drivers.tidy import remove_folder
from poise.errors import Conflict, Fault, SpecError
from poise.model.fields import memory
from poise.units import format_bytes


@click.command()
@click.option("--rank", type=WholeRange(min=0), metavar="N", help="The member of a gang. [default: 0]")
@click.option(
    "--most", default="16GiB", show_default=True, metavar="BYTES", help="Stop when the files are larger than this."
)
@click.option("--force", is_flag=True, help="Replace what is at DEST.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("source", metavar="JOB[.TASK]:PATH")
@click.argument("dest", required=False, type=click.Path(path_type=Path))
def get(source: str, dest: Path | None, rank: int | None, most: str, force: bool, as_json: bool) -> int:
    """Copy a file or a folder from the node of a task to DEST, by its PATH in the folder of the job.

    It works while the task runs and after its end, for as long as the job is known and its node is up. DEST is a name
    for it, or a folder in which it is put. [default: this folder]
    """
    job, colon, path = source.partition(":")
    if not colon or not job or not path:
        raise SpecError(
            "this names no file of a job",
            field="source",
            need="JOB:PATH",
            have=source,
            hint="`poise get j1:out.txt`; `poise ls` lists jobs",
        )
    limit = memory(most, "--most")
    name = Path(os.path.normpath(path)).name or job
    place = _place(dest, name, force)
    client = start.connected(current_home())
    files, size = kept(client.get(job, path, rank=rank), place, limit, force=force)
    if as_json:
        print_json({"path": str(place), "files": files, "bytes": size})
    else:
        say(f"poise: {place}: {files} {'file' if files == 1 else 'files'}, {format_bytes(size)}")
    return 0


def _place(dest: Path | None, name: str, force: bool) -> Path:
    """Return the destination. Raises Conflict if it exists."""
    place = dest or Path.cwd()
    place = (place / name if place.is_dir() else place).absolute()
    if not place.parent.is_dir():
        raise SpecError("the folder does not exist", field="dest", have=str(place.parent), hint=f"mkdir {place.parent}")
    if place.exists() and not force:
        raise Conflict("something is there already", field=str(place), hint="another DEST, or `--force`")
    return place


HINT = "`poise get j1:out.txt`; `poise ls` lists jobs"


def kept(pieces: Iterator[bytes], place: Path, limit: int, *, force: bool = False) -> tuple[int, int]:
    """Move the content of an archive of one file or folder to `place`; with `force`, replace a folder there. Return the
    number of files and their bytes. Raises SpecError if nothing in it can be kept, such as a link that leads elsewhere.
    """
    with tempfile.TemporaryDirectory(prefix=".poise-get-", dir=place.parent) as draft:
        files, size = _unpacked(pieces, Path(draft), place, limit)
        made = next(Path(draft).iterdir(), None)
        if made is None:
            what, need = "there is nothing to copy", "a file or a folder; no pipe, and no link that leads elsewhere"
            raise SpecError(what, field="source", need=need, hint="the path that the link leads to")
        if force and place.is_dir() and not place.is_symlink():
            remove_folder(place)
        made.replace(place)
    return files, size


class _Reader(io.RawIOBase):
    """Pieces as a file object; raises SpecError beyond a limit."""

    def __init__(self, pieces: Iterator[bytes], limit: int) -> None:
        self._pieces = pieces
        self._limit = limit
        self._waiting = b""
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        while not self._waiting:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._waiting = piece
            self._size += len(piece)
            if self._size > self._limit:
                need, hint = f"at most {format_bytes(self._limit)}", "`--most 100GiB`, or a path of less"
                raise SpecError("the files are larger than was allowed", field="--most", need=need, hint=hint)
        count = min(len(buffer), len(self._waiting))
        buffer[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        return count


def _unpacked(pieces: Iterator[bytes], folder: Path, place: Path, limit: int) -> tuple[int, int]:
    """Unpack an archive inside a folder, as `files`; messages call it by the name of `place`. Return the number of
    files and their bytes.
    """
    files = size = 0
    reader = io.BufferedReader(_Reader(pieces, limit), 1 << 20)
    try:
        with tarfile.open(fileobj=reader, mode="r|") as archive:
            for entry in archive:
                entry.name = "files" + entry.name[len(entry.name.split("/")[0]) :]
                try:
                    archive.extract(entry, folder, filter="data")
                except tarfile.FilterError:
                    what = "a link that leads elsewhere" if entry.issym() or entry.islnk() else "no file and no folder"
                    say(f"poise: {place.name + entry.name.removeprefix('files')!a} is left out: {what}")
                    continue
                files, size = files + entry.isfile(), size + entry.size
        while reader.read(1 << 20):
            pass
    except tarfile.TarError as error:
        raise Fault(f"the files came damaged: {error}", code="E216", hint="again") from None
    return files, size
