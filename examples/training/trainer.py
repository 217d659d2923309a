"""The Trainer of transformers learns to read digits; asked to end it saves itself, and goes on from there."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from transformers import Trainer, TrainingArguments

from poise_train.hugging_face import PoiseCallback, last_checkpoint

torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
digits = [
    {"image": torch.tensor(image / 16, dtype=torch.float32), "labels": int(label)}
    for image, label in zip(images, labels, strict=True)
]


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, image: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(image)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


args = TrainingArguments(
    "saved", max_steps=4000, per_device_train_batch_size=32, learning_rate=1e-3, save_steps=1000, save_total_limit=2,
    logging_steps=100, report_to="none", disable_tqdm=True, use_cpu=True,
)  # fmt: skip
trainer = Trainer(Reader(), args, train_dataset=digits, callbacks=[PoiseCallback()])
before = last_checkpoint("saved")
print(f"goes on from {before}" if before else "begins", flush=True)
trainer.train(resume_from_checkpoint=before)
print("is done with step", trainer.state.global_step)
