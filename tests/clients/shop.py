"""What stands for ChatGPT's store of files: a web server on this machine, without TLS, for tests alone."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HELD_SECONDS = 30.0
"""Until the rest of a file is given although nobody asked for it."""


class Shop:
    """Gives its one file, and half of it until the rest is asked for.  `data`: the bytes of the file."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.data = os.urandom(700_001)
        self.released: dict[str, threading.Event] = {}

    def file(self) -> dict[str, str]:
        """The file as ChatGPT hands it to a tool."""
        return {"download_url": f"{self.address}/whole", "file_id": "file_whole"}

    def held(self, key: str) -> tuple[dict[str, str], str]:
        """The same, stopping in the middle, and the address that lets it go on; `key` is for one use."""
        self.released[key] = threading.Event()
        file = {"download_url": f"{self.address}/held/{key}", "file_id": f"file_{key}"}
        return file, f"{self.address}/rest/{key}"


@contextmanager
def shop() -> Iterator[Shop]:
    """A shop on a free port."""

    class Counter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            what, _, key = self.path.removeprefix("/").partition("/")
            if what == "rest":
                open_.released[key].set()
                self.send_response(204)
                self.end_headers()
                return
            half = len(open_.data) // 2
            self.send_response(200)
            self.send_header("Content-Length", str(len(open_.data)))
            self.end_headers()
            self.wfile.write(open_.data[:half])
            if what == "held":
                open_.released[key].wait(HELD_SECONDS)
            self.wfile.write(open_.data[half:])

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Counter) as server:
        open_ = Shop(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield open_
        finally:
            server.shutdown()
            thread.join()
