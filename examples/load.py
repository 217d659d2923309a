"""So many clients ask a service of this machine for so many seconds: `python examples/load.py PORT CLIENTS SECONDS`.

Each asks again as soon as it is answered, or a little later where it is refused. Prints how many a second were answered
in the first third of the time and in the last.
"""

import http.client
import sys
import threading
import time

port, clients, seconds = (int(argument) for argument in sys.argv[1:])
began = time.monotonic()
answered: list[float] = []


def ask() -> None:
    """One client."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while time.monotonic() - began < seconds:
        connection.request("POST", "/predict", "1")
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            answered.append(time.monotonic() - began)
        else:
            time.sleep(0.05)


threads = [threading.Thread(target=ask) for _ in range(clients)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
first, last = sum(at < seconds / 3 for at in answered), sum(at > 2 * seconds / 3 for at in answered)
print(f"answered {3 * first / seconds:.0f}/s at first, {3 * last / seconds:.0f}/s at last")
