"""Which checkpoint of the Trainer of transformers is resumed from, where one was killed while it wrote."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from poise_train.trainer_folders import last_checkpoint


def write(folder: Path, step: int, *, sharded: bool = False) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    weights = {"weight": torch.ones(1000)}
    if sharded:
        save_file(weights, path / "model-00001-of-00002.safetensors")
        save_file(weights, path / "model-00002-of-00002.safetensors")
        where = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    else:
        save_file(weights, path / "model.safetensors")
    torch.save(weights, path / "optimizer.pt")
    torch.save({}, path / "training_args.bin")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def test_the_newest_by_number_is_resumed_from(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path / "none") is None
    assert last_checkpoint(tmp_path) is None
    write(tmp_path, 9)
    write(tmp_path, 10, sharded=True)
    (tmp_path / "checkpoint-best").mkdir()
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("trainer_state.json", False),
        ("trainer_state.json", True),
        ("optimizer.pt", True),
        ("model-00002-of-00002.safetensors", False),
        ("model-00002-of-00002.safetensors", True),
        ("model.safetensors.index.json", True),
    ],
)
def test_what_is_written_in_part_is_passed_over_and_told(
    tmp_path: Path, name: str, cut: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, 9)
    part = write(tmp_path, 10, sharded=True) / name
    whole = part.read_bytes()
    part.unlink()
    if cut:
        part.write_bytes(whole[:-9])
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-9")
    why = f"{name} is {'not whole' if cut else 'missing'}"
    assert capsys.readouterr().err == f"poise: {tmp_path / 'checkpoint-10'} is passed over: {why}\n"
