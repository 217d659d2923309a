"""A receiver of OTLP over HTTP that keeps the spans which it is sent, as OpenTelemetry's own messages decode them."""

import gzip
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from otlp.trace_service_pb2 import ExportTraceServiceRequest

from system.living import PATIENCE


class Collector:
    """Listens at `port` (0: a free one) while it is `open`; it answers with `status`, and keeps spans after a 200."""

    def __init__(self) -> None:
        self.port = 0
        self.status = 200
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer._take(self)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _take(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        assert (handler.path, handler.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
        if self._server is None:  # the connection was kept beyond the end
            handler.close_connection = True
            return
        status = self.status
        if status == 200:
            request = ExportTraceServiceRequest.FromString(gzip.decompress(body))
            self.headers.append(dict(handler.headers))
            for of_resource in request.resource_spans:
                self.resources.append({one.key: one.value.string_value for one in of_resource.resource.attributes})
                for scope in of_resource.scope_spans:
                    self.spans += scope.spans
        handler.send_response(status)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    # --- what has come -----------------------------------------------------------------------------------------------

    def trace(self, trace: str) -> list[Any]:
        """The spans of a trace so far, by its id in hexadecimal digits."""
        return [span for span in list(self.spans) if span.trace_id.hex() == trace]

    def wait(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, [span.name for span in self.spans]
            time.sleep(0.02)


def attributes(span: Any) -> dict[str, Any]:
    """The attributes of a span, a link or an event."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
