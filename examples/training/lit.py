"""Lightning learns to read digits; asked to end it saves itself, and goes on from there."""

from typing import Any

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from poise_train.lightning import PoiseCallback

torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))


class Reader(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-3)


poise = PoiseCallback("saved-by-lightning")
trainer = lightning.Trainer(
    max_steps=6000, callbacks=[poise], accelerator="cpu", logger=False, enable_progress_bar=False,
    enable_checkpointing=False, enable_model_summary=False,
)  # fmt: skip
before = poise.last_checkpoint()
print(f"goes on from {before}" if before else "begins", flush=True)
trainer.fit(Reader(), DataLoader(digits, batch_size=32, shuffle=True), ckpt_path=before)
print("is done with step", trainer.global_step)
