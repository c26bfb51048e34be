"""The recorded requests of real agent programs, for tests: 186 of them, long prose left out."""

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import JsonValue

from chappie_bridge.codec.loose import lower
from chappie_bridge.codec.protocols import CODECS, api_at
from chappie_bridge.codec.turn import OUR_CALL, Turn

_ARCHIVE = Path(__file__).parent.parent / "fixtures" / "hosts" / "requests.jsonl.gz"


@dataclass(frozen=True, slots=True)
class HostRequest:
    """One request: `file` names the program and a number, `sent` the call ids of its answer."""

    file: str
    scenario: str
    method: str
    path: str
    headers: dict[str, str]
    body: JsonValue
    sent: tuple[str, ...]

    @property
    def program(self) -> str:
        return self.file.partition("-")[0]


@cache
def host_requests() -> dict[str, HostRequest]:
    """All of them by name (`pi-01`), their call ids as the bridge mints them.

    They were recorded with call ids of a scripted endpoint.  Every program gives ids back verbatim, so
    the ids of the answers are replaced throughout by ids of ours.
    """
    text = gzip.decompress(_ARCHIVE.read_bytes()).decode("utf-8")
    lines = text.splitlines()
    ids = {call for line in lines for call in json.loads(line)["answered"].get("sent_ids", ())}
    for call in ids:
        if not call.startswith(OUR_CALL):
            text = text.replace(call, OUR_CALL + call.partition("_")[2])
    found = [json.loads(line) for line in text.splitlines()]
    return {
        each["file"]: HostRequest(
            each["file"],
            each["scenario"],
            each["method"],
            each["path"],
            lower([(name, value) for name, value in each["headers"]]),
            each["body"],
            tuple(each["answered"].get("sent_ids", ())),
        )
        for each in found
    }


def decoded(name: str) -> Turn:
    """The turn of one recorded request."""
    request = host_requests()[name]
    api = api_at(request.path)
    assert api
    return CODECS[api].decode(request.headers, request.body)
