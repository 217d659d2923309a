"""Ask a service of this machine, and print what it answers: `python examples/ask.py PORT [HEADER: VALUE] BODY...`."""

import http.client
import sys

port, *said = sys.argv[1:]
headers = dict(one.split(": ", 1) for one in said if one.startswith(("Cache-Control: ", "X-Poise-")))
connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
for body in said[len(headers) :]:
    connection.request("POST", "/predict", body, headers)
    answer = connection.getresponse()
    print(answer.status, answer.read().decode(), answer.headers.get("Cache-Status", ""))
