from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from poise.errors import SpecError
from poise.model.messages import Hello
from poise.model.resources import WHOLE, Shape, Wants, Where, check_node_name

SHAPES = st.builds(Shape, *[st.integers(0, 10**12)] * 4)


def test_a_shape_for_people() -> None:
    shape = Shape(cpu=1500, memory=8 * 2**30, gpus=1, gpu_memory=12 * 2**30)
    assert shape.describe() == "1.5 CPU, 8 GiB, 1 GPU of 12 GiB"
    assert Shape(gpus=2).describe() == "1 CPU, 2 GPU"


@given(SHAPES, SHAPES)
def test_keys_are_equal_only_for_equal_shapes(one: Shape, other: Shape) -> None:
    assert (one.key() == other.key()) == (one == other)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (Shape(), "1 CPU"),
        (Shape(cpu=500, network=10**9), "0.5 CPU, 1 Gbit/s"),
        (Shape(gpus=1, share=500), "1 CPU, 0.5 of 1 GPU"),
        (Shape(where=Where(nodes=("n1",))), "1 CPU on node n1"),
        (Shape(where=Where(without=("n1",))), "1 CPU, not node n1"),
        (Shape(gpus=2, wants=Wants(models=("H100", "A100"), backend="cuda")), "1 CPU, 2 H100/A100 cuda GPU"),
        (Shape(gpus=1, wants=Wants(kind="npu", precision="fp16")), "1 CPU, 1 NPU with fp16"),
        (
            Shape(gpus=1, gpu_memory=2**30, wants=Wants(ops=("matmul", "attention"))),
            "1 CPU, 1 GPU of 1 GiB for matmul, attention",
        ),
    ],
)
def test_what_was_asked_for_in_words(shape: Shape, words: str) -> None:
    assert shape.describe() == words


def test_a_plain_shape_has_the_key_it_always_had() -> None:
    """Keys are in checkpoints: what asks for nothing new keeps its own."""
    assert Shape(cpu=1500, memory=8, gpus=1, gpu_memory=12).key() == "1500.8.1.12"


WANTS = st.builds(
    Wants,
    kind=st.sampled_from(["gpu", "npu"]),
    models=st.lists(st.sampled_from(["A100", "H100"]), unique=True, max_size=2).map(tuple),
    backend=st.sampled_from(["", "cuda", "rocm"]),
    precision=st.sampled_from(["", "fp16"]),
    ops=st.lists(st.sampled_from(["matmul", "attention"]), unique=True, max_size=2).map(tuple),
)
CHOOSY = st.builds(
    Shape,
    gpus=st.integers(0, 2),
    share=st.sampled_from([1, 500, WHOLE]),
    network=st.sampled_from([0, 10**9]),
    wants=WANTS,
)


@given(CHOOSY, CHOOSY)
def test_keys_of_choosy_shapes_are_equal_only_for_equal_shapes(one: Shape, other: Shape) -> None:
    assert (one.key() == other.key()) == (one == other)
    assert (hash(one) == hash(other)) or one != other


@given(CHOOSY)
def test_a_shape_survives_encoding(shape: Shape) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(shape), type=Shape) == shape


@pytest.mark.parametrize(
    "said", [{"cpu": 2**63}, {"cpu": -1}, {"memory": 2**62}, {"network": 2**63}, {"rates": {"fp32": -5}}]
)
def test_a_node_that_says_what_cannot_be_is_not_heard(said: dict[str, Any]) -> None:
    hello = {"type": "hello", "node": {"name": "n1", "incarnation": "1", "cpu": 4000, "memory": 2**33}}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(hello), type=Hello).node.cpu == 4000
    hello["node"] |= said  # type: ignore[operator]
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(hello), type=Hello)


@pytest.mark.parametrize("name", ["n1", "10.0.0.7", "fd00::7", "::1", "_a", "gpu-1.rack.example", "x" * 255])
def test_names_that_machines_have(name: str) -> None:
    check_node_name(name, "name")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../a", "..", "-n", "a\nb", "\x1b[2J", "é", "x" * 256])
def test_names_that_no_path_line_or_command_takes(name: str) -> None:
    with pytest.raises(SpecError) as refused:
        check_node_name(name, "name")
    assert refused.value.record.code == "E107"
