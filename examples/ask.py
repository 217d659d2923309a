"""Ask a service of this machine, and print what it answers: `python examples/ask.py PORT BODY...`."""

import http.client
import sys

port, *bodies = sys.argv[1:]
connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
for body in bodies:
    connection.request("POST", "/predict", body)
    answer = connection.getresponse()
    print(answer.status, answer.read().decode())
