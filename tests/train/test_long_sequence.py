"""The example: a text that is read in chunks, by layers that remember, is read as it would be at once."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "long_sequence.py"


@pytest.fixture
def example() -> ModuleType:
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("long_sequence", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_in_chunks_a_text_is_read_as_at_once(example: ModuleType) -> None:
    text = torch.frombuffer(bytearray("\n".join(example.topics.values()), "utf-8"), dtype=torch.uint8).long()
    chunks = text[: 4 * example.CHUNK].view(4, 1, -1)
    with torch.no_grad():
        at_once = example.model().eval()(chunks.view(1, -1))
        model = example.model().eval()
        in_turn = torch.cat([model(chunk) for chunk in chunks], 1)
        forgetful = torch.cat([example.model().eval()(chunk) for chunk in chunks], 1)
    torch.testing.assert_close(in_turn, at_once, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(forgetful, at_once, atol=1e-2)
