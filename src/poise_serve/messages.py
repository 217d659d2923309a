"""The messages of KServe's protocol over gRPC (version 2, with Triton's stream and repository), as protobuf.

They are declared here, so that no compiler of `.proto` files is needed. A pool of their own keeps them apart from the
same messages of a client in this process.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "inference.GRPCInferenceService"

_PARAMETERS = "map Parameter parameters"
_MESSAGES: dict[str, dict[int, str]] = {
    "ServerLiveRequest": {},
    "ServerLiveResponse": {1: "bool live"},
    "ServerReadyRequest": {},
    "ServerReadyResponse": {1: "bool ready"},
    "ModelReadyRequest": {1: "string name", 2: "string version"},
    "ModelReadyResponse": {1: "bool ready"},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {1: "string name", 2: "string version", 3: "repeated string extensions"},
    "ModelMetadataRequest": {1: "string name", 2: "string version"},
    "TensorMetadata": {1: "string name", 2: "string datatype", 3: "repeated int64 shape"},
    "ModelMetadataResponse": {
        1: "string name",
        2: "repeated string versions",
        3: "string platform",
        4: "repeated TensorMetadata inputs",
        5: "repeated TensorMetadata outputs",
    },
    "Parameter": {
        1: "oneof bool bool_param",
        2: "oneof int64 int64_param",
        3: "oneof string string_param",
        4: "oneof double double_param",
        5: "oneof uint64 uint64_param",
    },
    "TensorContents": {
        1: "repeated bool bool_contents",
        2: "repeated int32 int_contents",
        3: "repeated int64 int64_contents",
        4: "repeated uint32 uint_contents",
        5: "repeated uint64 uint64_contents",
        6: "repeated float fp32_contents",
        7: "repeated double fp64_contents",
        8: "repeated bytes bytes_contents",
    },
    "Tensor": {
        1: "string name",
        2: "string datatype",
        3: "repeated int64 shape",
        4: _PARAMETERS,
        5: "TensorContents contents",
    },
    "RequestedOutput": {1: "string name", 2: _PARAMETERS},
    "ModelInferRequest": {
        1: "string model_name",
        2: "string model_version",
        3: "string id",
        4: _PARAMETERS,
        5: "repeated Tensor inputs",
        6: "repeated RequestedOutput outputs",
        7: "repeated bytes raw_input_contents",
    },
    "ModelInferResponse": {
        1: "string model_name",
        2: "string model_version",
        3: "string id",
        4: _PARAMETERS,
        5: "repeated Tensor outputs",
        6: "repeated bytes raw_output_contents",
    },
    "ModelStreamInferResponse": {1: "string error_message", 2: "ModelInferResponse infer_response"},
    "RepositoryIndexRequest": {1: "string repository_name", 2: "bool ready"},
    "ModelIndex": {1: "string name", 2: "string version", 3: "string state", 4: "string reason"},
    "RepositoryIndexResponse": {1: "repeated ModelIndex models"},
    "RepositoryModelLoadRequest": {1: "string repository_name", 2: "string model_name", 3: _PARAMETERS},
    "RepositoryModelLoadResponse": {},
    "RepositoryModelUnloadRequest": {1: "string repository_name", 2: "string model_name", 3: _PARAMETERS},
    "RepositoryModelUnloadResponse": {},
}
"""Fields by number: a type and a name. Other tensors, parameters and outputs than these have the same form on the wire
as those that the protocol declares inside of requests and answers.
"""


def _file() -> descriptor_pb2.FileDescriptorProto:
    made = descriptor_pb2.FileDescriptorProto(name="inference.proto", package="inference", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = made.message_type.add(name=name)
        for number, declared in fields.items():
            *rule, kind, field = declared.split()
            entry = message.field.add(name=field, number=number, label=_LABELS.get(rule[0] if rule else "", 1))
            if rule == ["oneof"]:
                if not message.oneof_decl:
                    message.oneof_decl.add(name="choice")
                entry.oneof_index = 0
            if rule == ["map"]:
                pairs = message.nested_type.add(name=f"{field.capitalize()}Entry")
                pairs.options.map_entry = True
                pairs.field.add(name="key", number=1, label=1, type=_SCALARS["string"])
                pairs.field.add(name="value", number=2, label=1, type=_MESSAGE, type_name=f".inference.{kind}")
                kind = f"{name}.{pairs.name}"
            if kind in _SCALARS:
                entry.type = _SCALARS[kind]
            else:
                entry.type, entry.type_name = _MESSAGE, f".inference.{kind}"
    return made


_LABELS = {"repeated": 3, "map": 3}
_SCALARS: dict[str, Any] = {
    one: getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{one.upper()}")
    for one in ("bool", "bytes", "double", "float", "int32", "int64", "string", "uint32", "uint64")
}
_MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE

_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(_file().SerializeToString())

MESSAGES: dict[str, Any] = {
    name: message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"inference.{name}")) for name in _MESSAGES
}
"""The classes of the messages, by name."""


__all__ = ["MESSAGES", "SERVICE"]
