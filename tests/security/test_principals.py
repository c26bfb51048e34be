"""A handle of another principal is an unknown one, wherever the broker remembers it."""

from pathlib import Path

import pytest

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.errors import UnknownOperation
from chappie_bridge.wire.ids import OperationId, SessionId
from chappie_bridge.wire.requests import Submit
from chappie_bridge.wire.values import NewCall
from tests.broker.rig import ScriptedAgent, broker, chat

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
