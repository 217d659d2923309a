"""Trainers of other frameworks: asked to end they save themselves, and started again they go on."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from poise.model.training import Training
from poise_train.adapter import Follower
from train.gangs import Ran, run
from train.groups import together

HUGGING_FACE = """
import json, os, signal, sys
import torch
from torch import nn
from transformers import Trainer, TrainingArguments
from poise_train.hugging_face import PoiseCallback, last_checkpoint

class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(1, 1)
    def forward(self, x, labels):
        if sys.argv[1] == "killed" and trainer.state.global_step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        if not self.training:
            with open(os.environ["POISE_REPORT"]) as file:
                evaluations.append(json.load(file).get("evaluating"))
        return {"loss": nn.functional.mse_loss(self.line(x), labels)}

evaluations = []
data = [{"x": torch.tensor([float(i)]), "labels": torch.tensor([2.0 * i])} for i in range(12)]
args = TrainingArguments("out", max_steps=6, per_device_train_batch_size=4, logging_steps=1, report_to="none",
                         save_strategy="no", disable_tqdm=True, use_cpu=True, eval_strategy="steps", eval_steps=2)
trainer = Trainer(Line(), args, train_dataset=data, eval_dataset=data[:8], callbacks=[PoiseCallback()])
begun = last_checkpoint("out")
trainer.train(resume_from_checkpoint=begun)
assert evaluations and all(evaluations), evaluations
print("from", begun, "to", trainer.state.global_step)
"""

LIGHTNING = """
import json, os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import lightning
from poise_train.lightning import PoiseCallback

class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(1, 1)
    def training_step(self, batch, number):
        if sys.argv[1] == "killed" and self.global_step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return nn.functional.mse_loss(self.line(batch[0]), batch[1])
    def validation_step(self, batch, number):
        with open(os.environ["POISE_REPORT"]) as file:
            evaluations.append(json.load(file).get("evaluating"))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)

evaluations = []
x = torch.arange(12.0).unsqueeze(1)
poise = PoiseCallback("out")
trainer = lightning.Trainer(max_epochs=2, callbacks=[poise], accelerator="cpu", logger=False, barebones=False,
                            enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
                            num_sanity_val_steps=0)
begun = poise.last_checkpoint()
loader = DataLoader(TensorDataset(x, 2 * x), batch_size=4)
trainer.fit(Line(), loader, loader, ckpt_path=begun)
assert evaluations and all(evaluations), evaluations
print("from", begun, "to", trainer.global_step)
"""


@pytest.mark.parametrize(
    ("package", "script"),
    [
        ("transformers", HUGGING_FACE),
        pytest.param("lightning", LIGHTNING, marks=pytest.mark.slow),
    ],
)
def test_a_trainer_that_is_asked_to_end_saves_itself_and_goes_on(package: str, script: str, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    file = tmp_path / "script.py"
    file.write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{script}")

    def train(how: str) -> Ran:
        return run(tmp_path, file, how, POISE_REPORT=str(tmp_path / "report"), HF_HUB_OFFLINE="1")

    ended = train("killed")
    assert ended.returncode == 128 + signal.SIGTERM, ended.stderr
    report = tmp_path / "report"
    told = msgspec.json.decode(report.read_bytes(), type=Training)
    assert told.step == 4  # the one after which it was asked to end
    assert told.checkpoint is not None
    assert (told.checkpoint.step, told.safe, told.step_time) == (4, 1_000_000 * 4 // 6, 0)
    report.unlink()

    done = train("whole")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("to 6")
    assert "from None" not in done.stdout
    told = msgspec.json.decode(report.read_bytes(), type=Training)
    assert (told.step, told.progress, told.batch, told.effective) == (6, 1_000_000, 4, 4)
    assert told.loss > 0
    assert told.restored == "what the trainer saved at step 4"


def followed(rank: int, world: int, folder: str) -> dict[str, float]:
    """The loss that a worker reports after a step in which it had its own."""
    report = Path(folder) / f"report.{rank}"
    os.environ["POISE_REPORT"] = str(report)
    follower = Follower()
    follower.begin(0)
    follower.loss = 1.0 + rank
    assert not follower.step(1, steps=1, batch=4)
    return {"loss": msgspec.json.decode(report.read_bytes(), type=Training).loss}


def test_a_trainer_reports_the_loss_of_all_workers(tmp_path: Path) -> None:
    """Lightning gives each worker that of its own part of a step."""
    assert together(followed, 2, tmp_path, str(tmp_path)) == [{"loss": 1.5}] * 2
