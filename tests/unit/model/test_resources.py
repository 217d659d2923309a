import hypothesis.strategies as st
from hypothesis import given

from poise.model.resources import Shape

SHAPES = st.builds(Shape, *[st.integers(0, 10**12)] * 4)


def test_a_shape_for_people() -> None:
    shape = Shape(cpu=1500, memory=8 * 2**30, gpus=1, gpu_memory=12 * 2**30)
    assert shape.describe() == "1.5 CPU, 8 GiB, 1 GPU of 12 GiB"
    assert Shape(gpus=2).describe() == "1 CPU, 2 GPU"


@given(SHAPES, SHAPES)
def test_keys_are_equal_only_for_equal_shapes(one: Shape, other: Shape) -> None:
    assert (one.key() == other.key()) == (one == other)
