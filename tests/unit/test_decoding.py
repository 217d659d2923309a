"""What several threads decode at once into a type that none has decoded into before."""

import re
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"

RACE = """
import sys, threading
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1])))
sys.setswitchinterval(1e-6)
import kinds
from poise.decoding import convert, json_decoder, msgpack_decoder
import msgspec

DEPTH = kinds.DEPTH
plain = 1
values = []
for _ in range(DEPTH):
    plain = {"a": plain, "b": {"x": 1}, "z": [1, 2]}
    values.append(plain)
together = threading.Barrier(4)

def decode(which):
    together.wait()
    for step in range(DEPTH):
        level = (7 * step + 3 * which) % DEPTH
        kind, value = getattr(kinds, f"Level{level}"), values[level]
        if which % 3 == 0:
            json_decoder(kind).decode(msgspec.json.encode(value))
        elif which % 3 == 1:
            msgpack_decoder(kind).decode(msgspec.msgpack.encode(value))
        else:
            convert(value, kind)

threads = [threading.Thread(target=decode, args=(which,)) for which in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_that_decode_into_new_types_at_once_do_not_crash(tmp_path: Path) -> None:
    """With msgspec's own decoders half of such processes are ended by SIGSEGV."""
    depth = 30
    kinds = [f"import msgspec\nDEPTH = {depth}\n"]
    for level in range(depth):
        inner = f"'Level{level - 1}'" if level else "int"
        kinds.append(f"class Level{level}(msgspec.Struct):\n a: {inner}\n b: 'dict[str, int]'\n z: 'list[int]'\n")
    (tmp_path / "kinds.py").write_text("".join(kinds))
    for _ in range(10):
        done = subprocess.run([sys.executable, "-c", RACE, tmp_path], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_nothing_decodes_into_a_type_in_another_way() -> None:
    theirs = re.compile(r"msgspec\.(json|msgpack)\.(Decoder\((?!\))|decode\([^\n]*type=)|msgspec\.convert\(")
    assert [path.name for path in sorted(SOURCE.rglob("*.py")) if theirs.search(path.read_text())] == ["decoding.py"]


def test_no_pattern_of_a_value_allows_a_line_break_at_its_end() -> None:
    """Python's `$` matches before a final line break. `\\Z` would say so, but JSON Schema has none."""
    patterns = re.compile(r'Meta\([^\n]*pattern=\w*"([^"]*)"')
    found = [pattern for path in SOURCE.rglob("*.py") for pattern in patterns.findall(path.read_text())]
    assert found
    assert [pattern for pattern in found if not pattern.endswith(r"$(?!\n)")] == []
