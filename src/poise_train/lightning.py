"""A callback for the Trainer of Lightning.

    poise = PoiseCallback("checkpoints")
    trainer = Trainer(max_epochs=10, callbacks=[poise])
    trainer.fit(model, loader, ckpt_path=poise.last_checkpoint())

The Trainer keeps its own loop, workers and checkpoints. The callback reports the progress. If the process is asked to
stop, it saves a checkpoint after the step and exits; after a restart, training resumes from there.
"""

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from poise_train.adapter import Follower

NAME = "poise.ckpt"


class PoiseCallback(Callback):
    """Reports the progress of training, and saves a checkpoint in `folder` and ends it when Poise asks for that."""

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / NAME
        self._follower = Follower()

    def last_checkpoint(self) -> str | None:
        """Return the path of the checkpoint saved at the last stop request, or None."""
        return str(self._path) if self._path.is_file() else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._follower.begin(trainer.global_step)
        self._steps = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._steps:
            return  # only accumulated gradients
        self._steps = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self._follower.loss = float(loss)
        if self._follower.step(
            self._steps,
            steps=int(trainer.estimated_stepping_batches),
            batch=getattr(trainer.train_dataloader, "batch_size", None) or 1,
            accumulation=trainer.accumulate_grad_batches,
            precision=str(trainer.precision).split("-", maxsplit=1)[0],
        ):
            trainer.save_checkpoint(self._path)
            self._follower.saved(self._steps)
            trainer.should_stop = True
            self._follower.end()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._follower.evaluates()

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._follower.evaluates()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._follower.rests()  # next is a checkpoint, or a step

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._follower.end()


__all__ = ["PoiseCallback"]
