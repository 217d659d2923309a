"""Calls a gateway with KServe's own Python client, as its documentation does, and prints what it got as JSON.

    python kserve_sdk.py URL ADDRESS KEY        ADDRESS is that of gRPC

It runs in an environment of its own, since this client needs an older protobuf than Poise's tests: `make test-clients`
installs it.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig


def asked(*, binary: bool) -> InferRequest:
    """A request with two tensors, of numbers and of texts."""
    x = InferInput("x", [2], "FP64")
    x.set_data_from_numpy(np.array([1.0, 2.0]), binary_data=binary)
    tags = InferInput("tags", [2, 1], "BYTES")
    tags.set_data_from_numpy(np.array([["a"], ["ä"]], dtype=object), binary_data=binary)
    return InferRequest(model_name="places", infer_inputs=[x, tags], request_id="7")


def told(answer: Any) -> dict[str, Any]:
    """Of an answer its id, its model, and its tensors."""
    outputs = {output.name: output.as_numpy().tolist() for output in answer.outputs}
    texts = {name: [one.decode() if isinstance(one, bytes) else one for one in row] for name, row in outputs.items()}
    return {"id": answer.id, "model": answer.model_name, "outputs": texts}


async def error(call: Awaitable[object]) -> str:
    try:
        return f"none: {await call}"
    except httpx.HTTPStatusError as refused:
        return f"{refused.response.status_code}: {refused}"
    except grpc.aio.AioRpcError as refused:
        return f"{refused.code().name}: {refused.details()}"


async def over_http(url: str, headers: dict[str, str]) -> dict[str, Any]:
    numbers = {"inputs": [{"name": "input", "shape": [3], "datatype": "FP32", "data": [1.0, 2.0, 3.0]}]}
    async with InferenceRESTClient(RESTConfig(protocol="v2", retries=5, timeout=30)) as client:
        seen: dict[str, str] = {}
        return {
            "live": await client.is_server_live(url, headers),
            "ready": await client.is_server_ready(url, headers),
            "model": await client.is_model_ready(url, "twice", headers),
            "another": await client.is_model_ready(url, "another", headers),
            "dict": told(await client.infer(url, numbers, "twice", headers, seen)),
            "headers": seen["content-type"],
            "json": told(await client.infer(url, asked(binary=False), "places", dict(headers))),
            "binary": told(await client.infer(url, asked(binary=True), "places", dict(headers))),
            "unknown": await error(client.infer(url, numbers, "another", headers)),
            "wrong": await error(client.infer(url, asked(binary=True), "twice", dict(headers))),
            "no key": await error(client.infer(url, numbers, "twice")),
        }


async def over_grpc(address: str, headers: list[tuple[str, str]]) -> dict[str, Any]:
    numbers = [InferInput("input", [3], "FP32", [1.0, 2.0, 3.0])]
    async with InferenceGRPCClient(address) as client:
        return {
            "live": await client.is_server_live(headers=headers),
            "ready": await client.is_server_ready(timeout=30.0, headers=headers),
            "model": await client.is_model_ready("twice", headers=headers),
            "another": await error(client.is_model_ready("another", headers=headers)),
            "typed": told(await client.infer(InferRequest("twice", numbers, request_id="7"), 30.0, headers)),
            "binary": told(await client.infer(asked(binary=True), headers=headers)),
            "unknown": await error(client.infer(InferRequest("another", numbers), headers=headers)),
            "wrong": await error(client.infer(InferRequest("rows", numbers), headers=headers)),
            "no key": await error(client.infer(InferRequest("twice", numbers))),
        }


async def main(url: str, address: str, key: str) -> None:
    logging.disable()  # the client logs each error before it raises it
    bearer = f"Bearer {key}"
    http = await over_http(url, {"Authorization": bearer})
    rpc = await over_grpc(address, [("authorization", bearer)])
    sys.stdout.write(json.dumps({"http": http, "grpc": rpc}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
