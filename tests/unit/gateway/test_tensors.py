"""Tensors of the Open Inference Protocol, and what is none."""

from typing import Any

import msgspec
import numpy as np
import pytest

from poise_serve.tensors import Inferred, WrongTensor, datatype_of, items, outputs, read, write


def request(*inputs: dict[str, Any], **more: Any) -> bytes:
    return msgspec.json.encode({"inputs": list(inputs)} | more)


def tensor(data: Any = None, shape: Any = (2,), datatype: str = "FP32", name: str = "input", **more: Any) -> Any:
    told = {"name": name, "shape": list(shape), "datatype": datatype, "parameters": more}
    return told if data is None else told | {"data": data}


def bodies(*inputs: dict[str, Any], fields: tuple[str, ...] = ()) -> list[Any]:
    return [msgspec.json.decode(one) for one in items(read(request(*inputs), None)[1], fields)]


def test_the_first_dimension_counts_the_items() -> None:
    assert bodies(tensor([1, 2.5])) == [1.0, 2.5]
    assert bodies(tensor([1, 2, 3, 4], (2, 2), "INT32")) == [[1, 2], [3, 4]]
    assert bodies(tensor([[[1], [2]], [[3], [4]]], (2, 2, 1), "INT64")) == [[[1], [2]], [[3], [4]]]
    assert bodies(tensor(["a", "ä"], (2,), "BYTES")) == ["a", "ä"]
    assert bodies(tensor([True, False], (2,), "BOOL")) == [True, False]


def test_several_inputs_or_those_of_a_record_are_fields() -> None:
    both = tensor([1, 2], name="x"), tensor(["a", "b"], datatype="BYTES", name="kind")
    assert bodies(*both) == [{"x": 1.0, "kind": "a"}, {"x": 2.0, "kind": "b"}]
    assert bodies(tensor([1, 2], name="x"), fields=("x",)) == [{"x": 1.0}, {"x": 2.0}]


@pytest.mark.parametrize("datatype", ["UINT8", "INT16", "INT64", "FP16", "FP32", "FP64"])
def test_binary_data_is_what_json_says(datatype: str) -> None:
    kind = {"UINT8": "u1", "INT16": "<i2", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}[datatype]
    data = np.array([1, 2, 3, 4], kind).tobytes()
    texts = b"".join(len(one).to_bytes(4, "little") + one for one in (b"a", b"", "ä".encode(), b"b"))
    head = request(
        tensor(shape=(2, 2), datatype=datatype, name="x", binary_data_size=len(data)),
        tensor(shape=(2, 2), datatype="BYTES", name="t", binary_data_size=len(texts)),
    )
    asked, arrays = read(head + data + texts, len(head))
    assert [msgspec.json.decode(one) for one in items(arrays, ())] == [
        {"x": [1, 2], "t": ["a", ""]},
        {"x": [3, 4], "t": ["ä", "b"]},
    ]
    assert [one.name for one in asked.inputs] == ["x", "t"]


def test_results_are_outputs() -> None:
    made = outputs([b"1", b"2"], [])
    assert datatype_of(made["output"]) == "INT64" and made["output"].tolist() == [1, 2]
    assert datatype_of(outputs([b"[1, 2.5]"], [])["output"]) == "FP64"
    assert datatype_of(outputs([b"true"], [])["output"]) == "BOOL"
    made = outputs(
        [b'{"label": "cat", "scores": [0.5, 1]}', b'{"label": "dog", "scores": [2, 3]}'], ["scores", "label"]
    )
    assert list(made) == ["scores", "label"] and made["scores"].shape == (2, 2)
    assert datatype_of(made["label"]) == "BYTES"


def test_an_answer_is_json_or_binary_by_output() -> None:
    made = outputs([b'{"a": 1, "b": "x"}', b'{"a": 2, "b": "yz"}'], [])
    body, length = write(Inferred("m", "1", [], "7"), made, {})
    assert length is None and msgspec.json.decode(body) == {
        "model_name": "m", "model_version": "1", "id": "7",
        "outputs": [{"name": "a", "shape": [2], "datatype": "INT64", "data": [1, 2]},
                    {"name": "b", "shape": [2], "datatype": "BYTES", "data": ["x", "yz"]}],
    }  # fmt: skip
    body, length = write(Inferred("m", "1", []), made, {"a": True, "b": True})
    assert length is not None
    told = msgspec.json.decode(body[:length])["outputs"]
    assert [one["parameters"]["binary_data_size"] for one in told] == [16, 4 + 1 + 4 + 2]
    assert body[length:] == b"\1" + bytes(7) + b"\2" + bytes(7) + b"\1\0\0\0x\2\0\0\0yz"


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([], "1 to 256 inputs"),
        ([tensor([1, 2]), tensor([1, 2])], "two inputs are named `input`"),
        ([tensor([1, 2, 3])], "3 elements"),
        ([tensor([1.5, 2], datatype="INT32")], "not of its datatype"),
        ([tensor([[1], 2], (2,))], "not rectangular"),
        ([tensor(5)], "has no data"),
        ([tensor()], "has no data"),
        ([tensor([1, "a"])], "not of its datatype"),
        ([tensor([1, None])], "not of its datatype"),
        ([tensor([1, True])], "not of its datatype"),
        ([tensor([1, 2], datatype="BOOL")], "not of its datatype"),
        ([tensor([1, 2], datatype="BYTES")], "texts"),
        ([tensor([300, 1], datatype="UINT8")], "`input`"),
        ([tensor([1, 2], datatype="FP8")], "no datatype `FP8`"),
        ([tensor([], (0,))], "above 0"),
        ([tensor([1], ())], "1 to 16 sizes"),
        ([tensor([1, 2], (-2,))], "above 0"),
        ([tensor([1], (2**40, 2**40))], "above 0"),
        ([tensor([1], (2**30, 2**30))], "1 elements"),
        ([tensor(binary_data_size=8)], "has 0 bytes of binary data, not 8"),
        ([tensor(binary_data_size=-1)], "not -1"),
        ([tensor(binary_data_size=True)], "not True"),
        ([tensor([1] * 3000, (3000,))], "1 to 2048 items"),
        ([tensor([1, 2], name="a"), tensor([1], (1,), name="b")], "same first dimension"),
    ],
)
def test_what_is_no_request(inputs: list[Any], said: str) -> None:
    with pytest.raises(WrongTensor, match=said):
        _, arrays = read(request(*inputs), None)
        items(arrays, ())


@pytest.mark.parametrize(
    ("body", "length"),
    [(b"", None), (b"[]", None), (b"{", None), (b"[" * 5000, None), (b"{}", 9), (request(tensor([1, 2])) + b"x", 1)],
)
def test_what_cannot_be_read(body: bytes, length: int | None) -> None:
    with pytest.raises(WrongTensor):
        read(body, length)


def test_binary_data_that_belongs_to_nothing_or_is_cut() -> None:
    head = request(tensor([1, 2]))
    with pytest.raises(WrongTensor, match="1 bytes of binary data belong to no input"):
        read(head + b"x", len(head))
    for texts in (b"\5\0\0\0a", b"\1\0", b"\1\0\0\0\xff"):
        head = request(tensor(shape=(1,), datatype="BYTES", binary_data_size=len(texts)))
        with pytest.raises(WrongTensor):
            read(head + texts, len(head))


@pytest.mark.parametrize(
    ("results", "wanted"),
    [
        ([b"[1]", b"[1, 2]"], []),
        ([b"null"], []),
        ([b'{"a": {"b": 1}}'], []),
        ([b'{"a": 1}', b'{"b": 1}'], []),
        ([b'[1, "a", [2]]'], []),
        ([b'["a"]', b'["b", "c"]'], []),
        ([b"[]"], []),
        ([b"99999999999999999999999"], []),
        ([b"1"], ["other"]),
    ],
)
def test_results_that_are_no_tensors(results: list[bytes], wanted: list[str]) -> None:
    with pytest.raises(WrongTensor):
        outputs(results, wanted)
