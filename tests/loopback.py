"""The fake index behind a real socket on the loopback interface, plain or with TLS, and a proxy in front of it."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.fakeindex import FakeIndex


@dataclass
class Loopback:
    """A served index; `pause` slows each 64 KiB of a body down by so many seconds."""

    fake: FakeIndex
    port: int = 0
    pause: float = 0.0

    @property
    def simple(self) -> str:
        """Return the index URL."""
        return f"{self.fake.host}/simple/"


@contextlib.contextmanager
def serve(
    fake: FakeIndex, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", pause: float = 0.0
) -> Iterator[Loopback]:
    """Serve an index until the block ends; its `host` becomes the real address."""
    served = Loopback(fake, pause=pause)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer = fake.answer(urlsplit(self.path).path, dict(self.headers))
            self.send_response(answer.status)
            for key, value in answer.headers.items():
                self.send_header(key, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                for start in range(0, len(answer.body), 65536):
                    self.wfile.write(answer.body[start : start + 65536])
                    if served.pause:
                        time.sleep(served.pause)
                self.wfile.flush()
            if answer.cut:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # clients that hang up or refuse the certificate are what tests do

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    served.port = server.server_address[1]
    fake.host = f"{'https' if tls else 'http'}://{host}:{served.port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
