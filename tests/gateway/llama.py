"""llama.cpp's own server with a model of 80,000 random weights: says nothing sensible, but it is the real thing.

    python -m gateway.llama FOLDER [embeddings]

writes the model into the folder, starts the server, prints its address and stays until its input ends.
"""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

WORDS, WIDTH, HEADS, INNER = 300, 64, 4, 128


def write_model(path: Path) -> None:
    """A llama of one layer whose tokens are the 256 bytes and some words."""
    import gguf
    import numpy as np

    chosen = np.random.default_rng(1)
    model = gguf.GGUFWriter(path, "llama")
    model.add_context_length(2048)
    model.add_embedding_length(WIDTH)
    model.add_block_count(1)
    model.add_feed_forward_length(INNER)
    model.add_head_count(HEADS)
    model.add_layer_norm_rms_eps(1e-5)
    model.add_rope_dimension_count(WIDTH // HEADS)
    model.add_vocab_size(WORDS)
    model.add_tokenizer_model("llama")
    model.add_token_list(
        [b"<unk>", b"<s>", b"</s>"]
        + [f"<0x{byte:02X}>".encode() for byte in range(256)]
        + [f"\u2581w{word}".encode() for word in range(259, WORDS)]
    )
    model.add_token_scores([0.0] * WORDS)
    kinds = gguf.TokenType
    model.add_token_types([kinds.UNKNOWN] + [kinds.CONTROL] * 2 + [kinds.BYTE] * 256 + [kinds.NORMAL] * (WORDS - 259))
    model.add_bos_token_id(1)
    model.add_eos_token_id(2)
    model.add_chat_template("{% for one in messages %}{{ one['role'] }}: {{ one['content'] }}\n{% endfor %}assistant:")

    def tensor(name: str, *shape: int) -> None:
        model.add_tensor(name, (chosen.standard_normal(shape) * 0.1).astype(np.float32))

    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        model.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    for name in ("token_embd", "output"):
        tensor(f"{name}.weight", WORDS, WIDTH)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        tensor(f"blk.0.{name}.weight", WIDTH, WIDTH)
    tensor("blk.0.ffn_gate.weight", INNER, WIDTH)
    tensor("blk.0.ffn_up.weight", INNER, WIDTH)
    tensor("blk.0.ffn_down.weight", WIDTH, INNER)
    model.write_header_to_file()
    model.write_kv_data_to_file()
    model.write_tensors_to_file()
    model.close()


class Llama:
    """The server as a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        pytest.importorskip("xllamacpp", reason="llama.cpp's server is not for this platform")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gateway.llama", str(folder), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parent.parent,
            text=True,
        )

    @functools.cached_property
    def url(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __enter__(self) -> "Llama":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    import xllamacpp

    folder = Path(sys.argv[1])
    write_model(folder / "tiny.gguf")
    options = xllamacpp.CommonParams()
    options.model.path = str(folder / "tiny.gguf")
    options.hostnames = ["127.0.0.1"]
    options.port = 0
    options.n_ctx = 2048
    options.n_parallel = 2
    options.cpuparams.n_threads = 1
    options.warmup = options.fit_params = False
    options.model_alias = {"tiny"}
    if "embeddings" in sys.argv:
        options.embedding = True
        options.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
        options.model_alias = {"tiny-embeddings"}
    server = xllamacpp.Server(options)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
