"""vLLM's own server for CPUs, with a model of random weights: it says nothing sensible, but it is the real thing.

`make test-clients` installs it in an environment of its own, since it needs other versions than Poise's tests.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

HOME = Path(__file__).resolve().parents[2] / ".peers" / "vllm"
PYTHON = HOME / "bin" / "python"
LIBRARIES = Path(sys.prefix) / "debian"

STARTS_WITHIN = 300.0
"""Seconds; it takes 20 of CPU, of which a busy machine may give little."""

LONGEST = 8192
"""Tokens of a prompt and its answer."""

WIDTH, INNER, HEADS, LAYERS = 256, 1024, 4, 4
"""Large enough that to read a long prompt takes most of an answer's time."""

SPECIAL = ("<s>", "</s>")
TEMPLATE = "{% for one in messages %}{{ one['role'] }}: {{ one['content'] }}\n{% endfor %}assistant:"


def write_model(folder: Path) -> None:
    """A Llama whose tokens are the 256 bytes. It answers with printable ones only, so every token is a letter, and none
    ends its answer before the limit.
    """
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = {word: number for number, word in enumerate((*SPECIAL, *letters))}
    tokens = Tokenizer(models.BPE(vocab=known, merges=[]))
    tokens.add_special_tokens(list(SPECIAL))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"} | named)
    shape = {
        "vocab_size": len(known),
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": LONGEST,
    }
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    kind = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "float32"}
    _write(folder / "config.json", kind | shape | ends)
    chosen = np.random.default_rng(1)

    def random(*shape: int) -> Any:
        return (chosen.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    said = [number for word, number in known.items() if len(word) == 1 and "!" <= word <= "~"]
    answers = np.zeros((len(known), WIDTH), np.float32)
    answers[said] = 8 * random(len(said), WIDTH)
    tensors = {"model.embed_tokens": random(len(known), WIDTH), "lm_head": answers, "model.norm": np.ones(WIDTH, "f4")}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        tensors |= {f"{at}.{norm}_layernorm": np.ones(WIDTH, "f4") for norm in ("input", "post_attention")}
        tensors |= {f"{at}.self_attn.{one}_proj": random(WIDTH, WIDTH) for one in "qkvo"}
        tensors |= {f"{at}.mlp.{one}_proj": random(INNER, WIDTH) for one in ("gate", "up")}
        tensors[f"{at}.mlp.down_proj"] = random(WIDTH, INNER)
    save_file({f"{name}.weight": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


class Vllm:
    """The server, which is several processes. It serves `tiny`, the model in a folder, and writes its log there."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._log = folder, folder / f"{name}.log"
        with socket.create_server(("127.0.0.1", 0)) as held:
            self._port = int(held.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begins it, which takes a while."""
        options = [
            *("--model", str(self._folder), "--served-model-name", "tiny"),
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("--max-model-len", str(LONGEST), "--kv-cache-memory-bytes", "256M", "--max-num-seqs", "16"),
            *("--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}'),
        ]
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # or the servers of a test share the first core
            "VLLM_CACHE_ROOT": str(self._folder / "cache"),
            "LD_LIBRARY_PATH": ":".join(map(str, LIBRARIES.glob("usr/lib/*-linux-gnu"))),
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", *options],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Returns when it answers."""
        assert self._process is not None
        end = time.monotonic() + STARTS_WITHIN
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError(self._log.read_text()[-5000:])
            time.sleep(0.5)

    def metric(self, name: str) -> float:
        """The value that it tells in its metrics."""
        text = httpx.get(f"{self.url}/metrics").text
        return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))

    def label(self, name: str, label: str) -> str:
        """The label of a metric."""
        found = re.search(rf'^{name}\{{.*\b{label}="([^"]*)"', httpx.get(f"{self.url}/metrics").text, re.MULTILINE)
        assert found is not None
        return found[1]

    def kill(self) -> None:
        """All of its processes, at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill_engine(self) -> None:
        """Only the process that computes; the one that answers notices it."""
        assert self._process is not None
        (engine,) = [one for one in psutil.Process(self._process.pid).children() if "EngineCore" in one.name()]
        engine.kill()

    def __enter__(self) -> "Vllm":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def needs_vllm() -> None:
    """Skip the whole file where it is not installed."""
    if not (HOME / ".ready").exists():
        pytest.skip("needs vLLM for CPUs: `make test-clients` installs it", allow_module_level=True)
