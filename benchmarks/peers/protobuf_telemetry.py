"""Protobuf on what nodes have told: `protobuf_telemetry.py FOLDER FILE` with, by line, the frames of one connection as
a list of JSON objects. Prints bytes and seconds, uncompressed and compressed.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from deflated import deflated
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped,unused-ignore]
from grpc_tools import protoc  # type: ignore[import-not-found]


def main() -> None:
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as out:
        if protoc.main(["", f"-I{here}", f"--python_out={out}", str(here / "telemetry.proto")]):
            raise SystemExit("the schema cannot be compiled")
        sys.path.insert(0, out)
        import telemetry_pb2  # type: ignore[import-not-found]
    kind = telemetry_pb2.Frame
    connections, encode, decode, size = [], 0.0, 0.0, 0
    for line in Path(sys.argv[2]).read_text().splitlines():
        messages = [ParseDict(one, kind()) for one in json.loads(line)]
        begun = time.perf_counter()
        frames = [message.SerializeToString() for message in messages]
        between = time.perf_counter()
        again = [kind.FromString(frame) for frame in frames]
        decode += time.perf_counter() - between
        encode += between - begun
        if again != messages:
            raise SystemExit("what was encoded is not what comes out")
        size += sum(map(len, frames))
        connections.append(frames)
    compressed, compress, decompress = deflated(connections)
    print(
        json.dumps(
            {
                "size": size,
                "encode": encode,
                "decode": decode,
                "compressed": compressed,
                "compress": compress,
                "decompress": decompress,
            }
        )
    )


if __name__ == "__main__":
    main()
