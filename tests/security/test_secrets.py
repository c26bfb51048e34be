"""No secret in any log or file but those that are made to hold it.  Real processes, and all they tell."""

import json
import logging
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import httpx2
import pytest
from chappie_broker.state import StateDirectory

from chappie_bridge.cli import options
from chappie_bridge.cli.reach import SHELL, reached
from chappie_bridge.wire.errors import Forbidden
from chappie_bridge.wire.owner import MakeCode, RedeemCode
from tests.story.bridge import Home, until

STORES = {"install-secret", "link-token"}
"""Files of the state directory that hold a secret; nothing else may."""

SIGNED = "/file?sig={0}&X-Amz-Signature={0}&X-Goog-Signature={0}"


class _Files(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if "missing" not in self.path else 404)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"data")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def files() -> Iterator[int]:
    """A private store of files, on the loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.anyio
async def test_a_whole_story_leaves_no_secret_behind(tmp_path: Path) -> None:
    """S21: a start, calls, a file by a signed address, wrong credentials at both doors, a one-time code; at
    the most talkative level, every log and every file that it left is searched."""
    home = Home(tmp_path)
    signature, wrong, argument = (secrets.token_urlsafe(24) for _ in range(3))
    with files() as port:
        home.environment["CHAPPIE_DOWNLOAD_HOSTS"] = json.dumps([f"http://127.0.0.1:{port}"])
        with home.up("--log-level", "debug") as running:
            kept = [(home.state / name).read_text(encoding="utf-8").strip() for name in sorted(STORES)]
            async with running.client("2026-07-28", "the story") as chat:
                await chat.tool("init")
                head, _ = await chat.tool("call", calls=[{"name": "ls", "arguments": {}}])
                assert head["status"] == "done"
                await chat.tool("call", calls=[{"name": f"Bearer {argument}", "arguments": {}}])
                for name in ("there", "missing"):
                    url = f"http://127.0.0.1:{port}{SIGNED.format(signature)}&{name}"
                    given = {"download_url": url, "file_id": name, "file_name": name}
                    await chat.tool("transfer", paths=[f"{name}.bin"], files=[given])
            assert (home.work / "there.bin").read_bytes() == b"data"
            async with httpx2.AsyncClient(trust_env=False) as http:
                for headers in ({"Authorization": f"Bearer {wrong}"}, {"X-Chappie-Key": wrong}):
                    for query in ("", f"?token={wrong}"):
                        answer = await http.post(running.ready["mcp"] + query, headers=headers, json={})
                        assert answer.status_code == 401
                        assert wrong not in answer.text
            _at_the_link(running.ready["link"], wrong)
            state = StateDirectory.visit(home.state)
            async with reached(state) as broker:
                code = (await broker.make_code(MakeCode(caller=SHELL, purpose="login"))).code
                with pytest.raises(Forbidden):
                    await broker.redeem_code(RedeemCode(caller=SHELL, purpose="pair", code=code, by="::1"))
                await broker.redeem_code(RedeemCode(caller=SHELL, purpose="login", code=code, by="::1"))
            await anyio.to_thread.run_sync(until, partial(_written, home), "all of it is in the audit log")
            told = home.run("audit", "--json", "-n", "1000").stdout
            await anyio.to_thread.run_sync(home.run, "doctor")
            _nowhere(home, [*kept, signature, wrong, code], told)
            assert argument not in told  # its agent's journal has it: a transcript keeps what was said
            assert argument not in running.stderr
        _nowhere(home, [*kept, signature, wrong, code], told)


def _written(home: Home) -> bool:
    """Lines are written twice a second."""
    lines = [json.loads(line) for line in home.run("audit", "--json", "-n", "1000").stdout.splitlines()]
    moved = any(line["what"].startswith("transfer") for line in lines)
    return moved and {"sent", "done"} <= {line["outcome"] for line in lines}


def _at_the_link(url: str, token: str) -> None:
    host, _, port = url.removeprefix("ws://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as end:
        lines = (
            "GET / HTTP/1.1",
            f"Host: {host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Protocol: chappie.v1",
            f"Authorization: Bearer {token}",
        )
        end.sendall("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n")
        answer = end.recv(65536)
    assert b" 401 " in answer
    assert token.encode() not in answer


def _nowhere(home: Home, values: list[str], told: str) -> None:
    found = [
        f"{path.relative_to(home.root)} holds {value[:6]}…"
        for path in home.root.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and not (path.parent == home.state and path.name in STORES)
        for value in values
        if value.encode() in path.read_bytes()
    ]
    assert found == []
    assert not [value for value in values if value in told]


def test_a_library_that_tells_all_tells_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """S21: whatever logger it uses, on stderr and in a file alike."""
    secret = secrets.token_urlsafe(24)
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        for begin in (
            lambda: options.log_to_stderr("debug"),
            lambda: options.log_to(tmp_path / "log", "debug"),
        ):
            begin()
            logging.getLogger("some.library").debug("sent %r", {"Authorization": f"Bearer {secret}"})
            for handler in root.handlers:
                handler.flush()
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = before
        root.setLevel(level)
    told = capsys.readouterr().err + (tmp_path / "log").read_text(encoding="utf-8")
    assert told.count("sent") == 2
    assert secret not in told
