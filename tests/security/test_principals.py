"""Who is who: a handle of another principal is an unknown one, wherever the broker remembers it, and another
person behind a known credential waits for the owner."""

from pathlib import Path

import httpx2
import pytest
from chappie_broker.broker import Broker

from chappie_bridge.faces.chatgpt.server import build
from chappie_bridge.wire.access import App
from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.errors import UnknownOperation
from chappie_bridge.wire.ids import AppId, OperationId, SessionId
from chappie_bridge.wire.owner import ListSubjects, RuleSubject
from chappie_bridge.wire.requests import Submit
from chappie_bridge.wire.values import Caller, NewCall
from tests.broker.rig import ScriptedAgent, an_office, broker, chat
from tests.faces.chatgpt.scripted import SECRET, Json, called, error, request, settings

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("remembered", ["memory", "registry"])
async def test_the_handle_of_another_principal_is_an_unknown_one(tmp_path: Path, remembered: str) -> None:
    """S08: the same words, the same code; its own principal finds it."""
    phone = chat("a", principal="phone")
    calls = (NewCall(name="noop", arguments={}),)
    async with broker(tmp_path) as board:
        ScriptedAgent(board.dispatch).register("s")
        done = await board.call(Submit(caller=phone, session=SessionId("s"), calls=calls, key="once"))
        if remembered == "registry":
            board._ledger.forget(done.operation)
        said = []
        for operation in (done.operation, OperationId("op_that_never_was")):
            with pytest.raises(UnknownOperation) as refused:
                await board.call(Submit(caller=chat("a", principal="laptop"), operation=operation, wait=0.2))
            said.append(refused.value.failure())
        assert said[0] == said[1]
        if remembered == "memory":
            assert (await board.call(Submit(caller=phone, operation=done.operation))).status is Status.DONE


async def test_another_person_behind_a_credential_waits_for_the_owner(tmp_path: Path) -> None:
    """Over HTTP, with the secret and with a token of an app, in `_meta` and in the header; the owner's word
    and the first one's place outlive the broker."""
    owner = Caller(principal="owner", source="shell")

    async with broker(tmp_path) as board:
        ScriptedAgent(board.dispatch).register("s")
        app = App(AppId("an app"), "An app", ("https://a.example/",))
        token = (await board.apps.consented(app, f"{BASE}/mcp")).access
        async with chatgpt(board, SECRET) as http, chatgpt(board, token) as other:
            assert not (await asks(http, "v1/me"))["isError"]
            assert "isError" in await called(http, "sessions")  # who names nobody is not asked for a name
            refused = error(await asks(http, "v1/you"))
            assert (refused["code"], refused["executed"]) == ("forbidden", "no")
            headers = {"X-OpenAI-Subject": "v1/you"}
            answer = await http.post("/mcp", json=request("call", CALL), headers=headers)
            assert error(answer.json()["result"])["code"] == "forbidden"
            assert not (await asks(other, "v1/you"))["isError"]  # of another credential the first
            assert error(await asks(other, "v1/me"))["code"] == "forbidden"

    async with broker(tmp_path) as board:
        ScriptedAgent(board.dispatch).register("s")
        office = an_office(board)
        async with chatgpt(board, SECRET) as http, chatgpt(board, token) as other:
            refused = error(await asks(http, "v1/you"))
            name = refused["hint"].rpartition(" ")[2].rstrip("`.")
            rows = (await office.list_subjects(ListSubjects(caller=owner))).subjects
            assert {row.status for row in rows if row.id == name} == {"waiting"}
            await office.rule_subject(RuleSubject(caller=owner, subject=name, allow=True))
            assert not (await asks(http, "v1/you"))["isError"]
            assert error(await asks(other, "v1/me"))["code"] == "forbidden"


BASE = "http://127.0.0.1:24273"
CALL = {"sessionId": "s", "calls": [{"name": "noop", "arguments": {}}]}


def chatgpt(board: Broker, credential: str) -> httpx2.AsyncClient:
    """ChatGPT with one credential, at the whole broker's front door."""
    face = build(board, settings(), an_office(board), board.apps)
    headers = {"Authorization": f"Bearer {credential}"}
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(face), base_url=BASE, headers=headers)


async def asks(http: httpx2.AsyncClient, subject: str) -> Json:
    return await called(http, "call", CALL, openai__subject=subject)
