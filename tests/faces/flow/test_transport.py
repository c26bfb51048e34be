"""Requests over real sockets to the strict peer; headers and answers that are the owner's alone."""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from pydantic import ValidationError

from chappie_bridge.faces.flow.hearing import Said
from chappie_bridge.faces.flow.own import MAX_GIVEN, Own
from chappie_bridge.faces.flow.settings import FlowSettings
from chappie_bridge.faces.flow.talk import DEBOUNCE, Talk
from chappie_bridge.faces.flow.transport import Cut, Refused, Transport
from chappie_bridge.faces.flow.turn import Ended, State
from chappie_bridge.wire.errors import BadArguments
from tests.faces.flow.driver import conversation
from tests.peer.flow import AUTHORIZATION, Flow, Say, serving
from tests.peer.flow import Cut as CutHere

pytestmark = pytest.mark.anyio

Make = Callable[..., FlowSettings]
HELLO = {"action": "next", "client_prepare_state": "sent", "model": "m", "timezone": "UTC"}


class NoTools:
    def settle(self, result: object, *, sent: bool) -> None:
        raise AssertionError

    async def run(self, call: object, conversation: str) -> Any:
        raise AssertionError


def talk(settings: FlowSettings, shown: list[Any]) -> Talk:
    return Talk(conversation(), Transport(settings), NoTools(), shown.append)


async def test_a_turn_over_http_whatever_the_pieces(settings: Make) -> None:
    for seed in range(5):
        flow, shown = Flow([[Say("größer 😀 " * 50)]], seed=seed), list[Any]()
        async with serving(flow) as url:
            assert await talk(settings(url), shown).say("hi") == Ended(State.FINISHED)
        assert "".join(each.text for each in shown if isinstance(each, Said)) == "größer 😀 " * 50
        assert not flow.refused


async def test_a_stream_that_is_cut_inside_a_character_goes_on_from_the_stored_conversation(
    settings: Make,
) -> None:
    for less in range(1, 30):
        flow, shown = Flow([[Say("ä" * 500, end=True), CutHere(less + 160)]], seed=less), list[Any]()
        async with serving(flow) as url:
            assert (await talk(settings(url), shown).say("hi")).state is State.FINISHED
        assert "".join(each.text for each in shown if isinstance(each, Said)) == "ä" * 500


async def test_what_is_typed_is_prepared_once_it_stands_still(
    settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chappie_bridge.faces.flow.talk.DEBOUNCE", 0)
    flow = Flow([[Say("ok")]])
    texts = iter(["w", "wh", "wha", "wha", "wha", "wha"])
    enough = anyio.Event()

    def look() -> str:
        found = next(texts, None)
        if found is None:
            enough.set()
        return found or "wha"

    async with serving(flow) as url, anyio.create_task_group() as tasks:
        held = talk(settings(url), [])
        await held.open()
        tasks.start_soon(held.typing, look)
        with anyio.fail_after(10):
            await enough.wait()
        tasks.cancel_scope.cancel()
    typed = [body.get("partial_query", {}).get("content", {}).get("parts") for _, body in flow.requests]
    assert typed == [None, ["wha"]]
    assert DEBOUNCE > 0


async def test_a_refusal_says_what_the_endpoint_says_and_no_secret(
    settings: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """S21: neither headers nor answers nor tokens are shown or logged."""
    caplog.set_level(logging.DEBUG)
    async with serving(Flow([])) as url:
        transport = Transport(settings(url))
        with pytest.raises(Refused, match=r"\(400\).*unknown fields"):
            async with transport.converse({"x": 1}, "token-of-the-test"):
                pass
        assert await transport.prepare({"x": 1}) is None
        assert await transport.read("none") is None
    assert AUTHORIZATION not in caplog.text
    assert "token-of-the-test" not in caplog.text


async def test_nobody_there_is_told(settings: Make) -> None:
    async with serving(Flow([])) as url:
        pass
    ended = await talk(settings(url), []).say("hi")
    assert ended.state is State.FAILED
    assert "cannot be reached" in ended.reason


@pytest.mark.parametrize(
    "said",
    [b"", b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"],
    ids=["nothing", "nonsense", "half"],
)
async def test_an_answer_that_ends_early_is_a_cut(settings: Make, said: bytes) -> None:
    async def serve(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(said or b"\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"  # noqa: S610
        with pytest.raises((Cut, Refused)):
            await Transport(settings(url)).challenge()
        tasks.cancel_scope.cancel()


async def test_a_redirect_is_not_followed(settings: Make) -> None:
    async def serve(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(
                b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
            )

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"  # noqa: S610
        with pytest.raises(Refused, match="302"):
            await Transport(settings(url)).challenge()
        tasks.cancel_scope.cancel()


# --- the owner's own ---


def test_no_endpoint_is_built_in() -> None:
    with pytest.raises(BadArguments, match="none is built in"):
        Transport(FlowSettings())
    assert "://" not in json.dumps(FlowSettings().model_dump())


def test_names_of_the_interface_stand_for_what_the_description_says() -> None:
    models = {name: (each.model, each.effort) for name, each in FlowSettings().models.items()}
    assert models == {
        "Instant": ("gpt-5-5-instant", ""),
        "Medium": ("gpt-5-5-thinking", "standard"),
        "High": ("gpt-5-5-thinking", "extended"),
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoint": "http://example.org"},
        {"endpoint": "https://user:secret@example.org"},
        {"endpoint": "https://example.org/?a=1"},
        {"endpoint": "ftp://example.org"},
        {"challenge": "challenge"},
        {"models": {}},
        {"models": {"x": {"effort": "y"}}},
        {"idle": 0},
        {"other": 1},
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FlowSettings.model_validate(wrong)


async def test_without_a_configured_answer_nothing_is_sent(settings: Make) -> None:
    flow = Flow([[Say("never")]])
    async with serving(flow) as url:
        ended = await talk(settings(url, answer_command=()), []).say("hi")
    assert ended.state is State.FAILED
    assert "answer_command" in ended.reason
    assert [kind for kind, _ in flow.requests] == ["prepare"]


async def test_a_command_reads_the_challenge_and_a_file_is_used_once(settings: Make, tmp_path: Path) -> None:
    upper = (sys.executable, "-c", "import sys; print(sys.stdin.read().upper())")
    assert await Own(settings("", answer_command=upper)).answer("nonce") == "NONCE"
    answer = tmp_path / "answer"
    answer.write_text("first\n", encoding="utf-8")
    answer.chmod(0o600)
    own = Own(settings("", answer_command=(), answer_file=str(answer)))
    assert await own.answer(None) == "first"
    with pytest.raises(BadArguments, match="used before"):
        await own.answer(None)
    answer.write_text("second\n", encoding="utf-8")
    assert await own.answer(None) == "second"
    assert "second" not in repr(vars(own)), "it is not kept"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("", "empty"),
        (f"print('x' * {MAX_GIVEN + 1})", "more than"),
        ("import sys; sys.stdout.buffer.write(bytes([255]))", "no UTF-8"),
    ],
)
async def test_a_command_that_fails_is_told_without_its_output(settings: Make, code: str, said: str) -> None:
    with pytest.raises(BadArguments, match=said):
        await Own(settings("", answer_command=(sys.executable, "-c", code))).answer("x")


async def test_a_program_that_is_not_there_is_told(settings: Make, tmp_path: Path) -> None:
    with pytest.raises(BadArguments, match="No such file"):
        await Own(settings("", answer_command=(str(tmp_path / "none"),))).answer("x")


@pytest.mark.parametrize(
    "line",
    ["X-Codex-Turn-State: 1", "Host: other", "no colon", "Bad\x01: x", ": empty", "Content-Length: 3"],
)
async def test_a_header_that_has_no_place_here_is_refused(settings: Make, tmp_path: Path, line: str) -> None:
    made = settings("https://example.org")
    (tmp_path / "headers").write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises((BadArguments, Refused)):
        await Own(made).headers()


async def test_a_file_that_others_may_read_is_refused(settings: Make, tmp_path: Path) -> None:
    made = settings("https://example.org")
    (tmp_path / "headers").chmod(0o644)
    with pytest.raises(BadArguments, match="others may read"):
        await Own(made).headers()
