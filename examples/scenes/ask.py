"""Ask the services about the first scenes, eight at a time: `python ask.py PORT [COUNT]`.

Picture and question are asked about at once; then what is meant, and what follows from it.
"""

import http.client
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from records import Scene, read

AT_ONCE = 8


class Services:
    """One connection for each thread."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._kept = threading.local()

    def ask(self, service: str, question: Any) -> Any:
        if not hasattr(self._kept, "connection"):
            self._kept.connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        connection = self._kept.connection
        connection.request("POST", f"/predict/{service}", msgspec.json.encode(question))
        answer = connection.getresponse()
        told = json.loads(answer.read())
        if answer.status != 200:
            raise SystemExit(f"{service}: {told['error']['message']}")
        return told


def main() -> None:
    port, count = (*map(int, sys.argv[1:]), 200)[:2]
    services, scenes = Services(port), read("scenes", Scene)[:count]

    def answer(scene: Scene) -> Any:
        regions = beside.submit(services.ask, "perceive", scene.image)
        asked = services.ask("parse", scene.question)
        meant = services.ask("align", {"asked": asked, "regions": regions.result()})
        return services.ask("reason", meant)["answer"]

    with ThreadPoolExecutor(AT_ONCE) as beside, ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(answer, scenes))
    for scene, told in list(zip(scenes, answers, strict=True))[:3]:
        print(f"{scene.question} {told}")
    right = sum(scene.truth.answer == told for scene, told in zip(scenes, answers, strict=True))
    print(f"answers: right in {right} of {len(scenes)} scenes")


if __name__ == "__main__":
    main()
