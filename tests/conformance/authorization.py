"""The suite's scenarios for authorization servers, with a registered client and an owner who lets it in.

They have no baseline: each of their checks passes, and one that is missing or skipped fails the run.
"""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, cast

import httpx2

from chappie_bridge.demo.bridge import Ready
from tests.clients.environments import node, node_environment
from tests.clients.owner import lets_in

SECONDS = 60.0
"""For one run; it takes about two."""

VERSIONS = ("2025-11-25", "2026-07-28")
"""Of the specification."""

CHECKS = {"authorization-server-metadata", "authorization-server-metadata-cimd", "authorization-code-grant"}


def good(place: Path, ready: Ready, results: Path) -> bool:
    """Run them and say how it went.  `ready` is a bridge that wants a credential."""
    went = [_good(place, ready, version, results / version) for version in VERSIONS]
    return all(went)


def _good(place: Path, ready: Ready, version: str, results: Path) -> bool:
    base = ready.mcp.removesuffix("/mcp")
    port = _free_port()
    given = {"client_name": "conformance", "redirect_uris": [f"http://127.0.0.1:{port}/callback"]}
    client = httpx2.post(f"{base}/register", json=given).raise_for_status().json()["client_id"]
    argv = [str(node() / "bin" / "node")]
    argv += [str(place / "node_modules/@modelcontextprotocol/conformance/dist/index.js"), "authorization"]
    argv += ["--url", base, "--resource", ready.mcp, "--client-id", client, "-p", str(port)]
    argv += ["--spec-version", version, "-o", str(results)]
    with subprocess.Popen(argv, env=node_environment(), stdout=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        try:
            said = _driven(cast("IO[str]", process.stdout), base, ready.state)
        finally:
            timer.cancel()
            process.kill()
    found = {check["id"]: check["status"] for check in _checks(results)}
    if found == dict.fromkeys(CHECKS, "SUCCESS"):
        print(f"authorization {version}: all {len(CHECKS)} checks pass")
        return True
    print(said, f"authorization {version}: {found}", sep="\n", file=sys.stderr)
    return False


def _driven(stdout: IO[str], base: str, state: Path) -> str:
    """All it says.  Where it waits for a browser the owner's opens the page, and is sent back."""
    said = ""
    for line in stdout:
        said += line
        if line.startswith(f"{base}/authorize?"):
            httpx2.get(lets_in(state, line.strip())).raise_for_status()
    return said


def _checks(results: Path) -> list[dict[str, str]]:
    return [
        check
        for file in results.glob("*/checks.json")
        for check in json.loads(file.read_text(encoding="utf-8"))
    ]


def _free_port() -> int:
    """The suite takes no port 0."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
