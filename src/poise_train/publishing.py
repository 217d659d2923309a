"""Writes a worker's part of a checkpoint; worker 0 also publishes the complete checkpoint and removes old ones.

Order makes it crash-safe: file, folder, then the name, each durable before the next. A kill at any point leaves either
a folder without a checkpoint's name, or a complete checkpoint.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns, perf_counter_ns

import msgspec

from poise import __version__
from poise.decoding import json_decoder
from poise.errors import Conflict
from poise.model.training import Saved
from poise.units import SECOND
from poise_train import durable, fence
from poise_train.drafts import Draft
from poise_train.fence import Term
from poise_train.model.checkpoints import FORMAT, MANIFEST, Manifest, Piece, Shard, seal
from poise_train.pieces import Damaged, cut, shard_file, shard_record, write
from poise_train.policy.checkpoints import Keep, superfluous
from poise_train.restoring import Foreign, damaged, folder_of, listed, read_manifest, reason

PATIENCE = 60 * SECOND
"""Time that worker 0 waits for the other parts after writing its own."""

LOOK_FIRST, LOOK_LAST = 0.002, 0.2
"""First and last polling interval for the other parts, in seconds; it increases with time."""


class Publisher:
    """Publisher of worker `rank` of `world` in one folder. `give_up_at`: when worker 0 stops waiting for other parts,
    if before `patience` ends (0: not set). `reading`: steps that workers of the gang may be reading.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        world: int,
        epoch: int,
        training: int,
        keep: Keep,
        patience: int,
        tell: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self.rank, self.world, self.epoch, self.training = rank, world, epoch, training
        self.give_up_at = 0
        self.reading: set[int] = set()
        self._keep, self._patience, self._tell = keep, patience, tell
        self._term: Term | None = None
        self._scores: dict[int, float | None] = {}
        self._stuck: set[str] = set()

    def begin(self) -> list[int]:
        """On worker 0: fence off earlier attempts. Returns the steps of their unfinished checkpoints.

        Raises `Conflict` if this attempt is fenced off itself, see `fence`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._term = fence.begin(self.folder, self.epoch, self.training)
        if self._term is None:
            raise self._fenced()
        unfinished = fence.take_names(self.folder, self._term, self._remove)
        self._sweep()
        return unfinished

    def join(self) -> None:
        """On other workers: wait for worker 0's fence. It was made before the gang's first collective, but a shared
        file system may show it later. Raises `Conflict` if fenced off, or if there is no fence in time.
        """
        deadline = monotonic_ns() + self._patience
        while self._term is None:
            top = fence.highest(self.folder)
            if top is not None and (top.epoch, top.training) == (self.epoch, self.training):
                self._term = top
            elif fence.is_over(self.folder, self.epoch, self.training):
                raise self._fenced()
            elif monotonic_ns() > deadline:
                raise Conflict(
                    "worker 0 has not begun in this folder of checkpoints, or it is not the same folder",
                    field=str(self.folder),
                    need=f"a folder that all {self.world} workers see",
                    hint=f"ls {self.folder}",
                )
            else:
                time.sleep(LOOK_LAST)

    def write(self, draft: Draft) -> Saved | None:
        """Write this worker's part; on worker 0, publish the checkpoint and return its record. Raises `Damaged` and
        `OSError` on failure, `Conflict` after another attempt or training has begun.
        """
        try:
            return self._write(draft)
        except FileNotFoundError:
            self._look_at_fence()
            raise Damaged("what was written of it has been removed") from None

    def _write(self, draft: Draft) -> Saved | None:
        self._look_at_fence()
        partial = self._partial(draft)
        partial.mkdir(exist_ok=True)
        written = write(partial / shard_file(self.rank), draft.laid, draft.staging)
        shard = Shard(
            step=draft.step,
            rank=self.rank,
            world=self.world,
            size=written.size,
            head=written.head,
            pieces=written.pieces,
            own=msgspec.Raw(draft.own),
            kinds=draft.own_kinds,
        )
        durable.write(partial / shard_record(self.rank), msgspec.json.encode(shard))
        durable.sync(partial)
        return (
            self._publish(draft, partial, [shard, *self._parts_of_others(draft, partial)]) if self.rank == 0 else None
        )

    def failed(self, draft: Draft, why: str) -> None:
        """Report a failure, free its disk space for the next checkpoint, and notify worker 0."""
        self._tell(f"the checkpoint of step {draft.step} was not written: {why}")
        partial = self._partial(draft)
        with contextlib.suppress(OSError):
            if self.rank == 0:
                durable.clear(partial)
                return
            (partial / shard_file(self.rank)).unlink(missing_ok=True)
            said = Shard(step=draft.step, rank=self.rank, world=self.world, failed=why)
            durable.write(partial / shard_record(self.rank), msgspec.json.encode(said))

    def set_aside(self, step: int) -> None:
        """Rename a damaged checkpoint, so that a new one of that step can have its name."""
        aside = self.folder / f"step-{step}.damaged"
        try:
            if aside.exists():
                durable.clear(aside)
            folder_of(self.folder, step).rename(aside)
        except OSError as error:
            self._tell(f"the damaged checkpoint of step {step} cannot be set aside: {reason(error)}")

    def _parts_of_others(self, draft: Draft, partial: Path) -> list[Shard]:
        """Wait for the other parts, in rank order. Raises `Damaged` if one failed, does not match or is missing."""
        found: dict[int, Shard] = {}
        deadline = monotonic_ns() + self._patience
        pause = LOOK_FIRST
        while True:
            for rank in range(1, self.world):
                record = partial / shard_record(rank)
                if rank not in found and record.exists():
                    shard = json_decoder(Shard).decode(record.read_bytes())
                    found[rank] = self._fitting(draft, partial, rank, shard)
            missing = [str(rank) for rank in range(1, self.world) if rank not in found]
            if not missing:
                return [found[rank] for rank in sorted(found)]
            if monotonic_ns() > min(deadline, self.give_up_at or deadline):
                raise Damaged(f"no part came from worker {', '.join(missing)}")
            time.sleep(pause)
            pause = min(LOOK_LAST, 2 * pause)

    def _fitting(self, draft: Draft, partial: Path, rank: int, shard: Shard) -> Shard:
        """Return the part of worker `rank`. Raises `Damaged` if it does not match this state."""
        if shard.failed:
            raise Damaged(f"worker {rank}: {shard.failed}")
        expected = {_place(piece) for piece in cut(draft.kinds, rank, self.world, draft.first)}
        have = {_place(piece) for piece in shard.pieces if piece.tensor < len(draft.kinds)}
        if (shard.step, shard.rank, shard.world) != (draft.step, rank, self.world) or have != expected:
            raise Damaged(f"the state of worker {rank} is not like that of worker 0")
        size = (partial / shard_file(rank)).stat().st_size
        if size != shard.size:
            raise Damaged(f"{shard_file(rank)} has {size:,} bytes, not {shard.size:,}")
        return shard

    def _publish(self, draft: Draft, partial: Path, shards: list[Shard]) -> Saved:
        manifest = Manifest(
            format=FORMAT,
            step=draft.step,
            epoch=self.epoch,
            world=self.world,
            at=time.time(),
            took=perf_counter_ns() - draft.began,
            stall=draft.stall,
            size=sum(shard.size for shard in shards),
            tree=msgspec.Raw(draft.tree),
            kinds=draft.kinds,
            shards=shards,
            score=draft.score,
            poise=__version__,
        )
        durable.write(partial / MANIFEST, seal(manifest))
        for shard in shards:  # keep only files that are verified when read
            (partial / shard_record(shard.rank)).unlink()
        durable.sync(partial)
        target = folder_of(self.folder, draft.step)
        self._look_at_fence()
        if draft.step in self.reading:  # the existing one is complete, and may be the only one
            durable.clear(partial)
        else:
            if target.exists():  # from an earlier attempt that this one did not resume
                target.rename(target.with_name(f"{target.name}.cleared"))
            partial.rename(target)
            durable.sync(self.folder)
        self._scores[draft.step] = draft.score
        self.reading = set()
        self._clear(draft.step)
        return Saved(
            step=draft.step,
            at=manifest.at,
            took=manifest.took,
            stall=manifest.stall,
            bytes=manifest.size,
            kept=len(listed(self.folder)),
        )

    def _look_at_fence(self) -> None:
        if fence.highest(self.folder) != self._term:
            raise self._fenced()

    def _clear(self, newest: int) -> None:
        """Remove old checkpoints. Failures are reported. Checkpoints of another Poise version are kept."""
        scores = {}
        for step in listed(self.folder):
            with contextlib.suppress(Foreign):
                scores[step] = self._score(step)
        self._scores = scores
        for step in superfluous(scores, self._keep, {newest, *self.reading}):
            self._remove(folder_of(self.folder, step))
        for path, step in damaged(self.folder):
            if step <= newest:
                self._remove(path)
        if self._term is not None:
            fence.clear_unfinished(self.folder, self._term, newest, self._remove)
        self._sweep()

    def _remove(self, path: Path) -> bool:
        """Remove a folder, and return whether it existed. A failure is reported once per name and not raised."""
        try:
            durable.clear(path)
        except FileNotFoundError:  # its writer renamed it, or removes it too
            return False
        except OSError as error:
            name = path.name.removesuffix(".cleared")
            if name not in self._stuck:
                self._stuck.add(name)
                self._tell(f"an old checkpoint cannot be removed: {reason(error)}")
        return True

    def _score(self, step: int) -> float | None:
        if step not in self._scores:
            try:
                self._scores[step] = read_manifest(folder_of(self.folder, step)).score
            except Foreign:
                raise
            except (Damaged, OSError):
                self._scores[step] = None
        return self._scores[step]

    def _sweep(self) -> None:
        """Finish removals that a kill interrupted."""
        for path in self.folder.glob("step-*.cleared"):
            self._remove(path)

    def _fenced(self) -> Conflict:
        top = fence.highest(self.folder)
        if top is not None and top.training != self.training:
            return Conflict(
                "another training has begun in this folder of checkpoints: nothing of this one is published any more",
                field=str(self.folder),
                need="a folder for each training",
                have=f"{top}, of another",
                hint='poise.Session(..., checkpoint="another folder")',
            )
        return Conflict(
            "a newer attempt has begun in this folder of checkpoints: nothing of this one is published any more",
            field=str(self.folder),
            need=f"at least {top or 'the fence'}",
            have=str(self._term or f"epoch {self.epoch}"),
            hint="end this process, or give it its own folder",
        )

    def _partial(self, draft: Draft) -> Path:
        assert self._term is not None, "it has begun, or joined"  # noqa: S101
        return fence.partial(self.folder, draft.step, self._term)


def _place(piece: Piece) -> tuple[int, int, int, str]:
    return piece.tensor, piece.start, piece.stop, piece.name
