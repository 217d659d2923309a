"""A callback for the Trainer of Hugging Face transformers.

    trainer = Trainer(model, args, train_dataset=data, callbacks=[PoiseCallback()])
    trainer.train(resume_from_checkpoint=last_checkpoint(args.output_dir))

The Trainer keeps its own loop, workers and checkpoints. The callback reports the progress. If the process is asked to
stop, the Trainer saves a checkpoint after the step and stops; after a restart, training resumes from there.
"""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from poise_train.adapter import Follower
from poise_train.trainer_folders import last_checkpoint


class PoiseCallback(TrainerCallback):  # type: ignore[misc]  # mypy does not read transformers
    """Reports the progress of training, and saves a checkpoint and ends it when Poise asks for that."""

    def __init__(self) -> None:
        self._follower = Follower()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        self._follower.begin(state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> TrainerControl:
        if self._follower.step(
            state.global_step,
            steps=state.max_steps,
            batch=args.per_device_train_batch_size,
            accumulation=args.gradient_accumulation_steps,
            precision="bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
        ):
            control.should_save = control.should_training_stop = True
        if control.should_evaluate:
            self._follower.evaluates()
        elif control.should_save:
            self._follower.rests()
        return control

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        self._follower.evaluates()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._follower.rests()  # next is a checkpoint, or a step

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._follower.loss = float(more.get("logs", {}).get("loss", self._follower.loss))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._follower.saved(state.global_step)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._follower.end()


__all__ = ["PoiseCallback", "last_checkpoint"]
