"""How far a transfer is, told ahead of its answer to a client that asked for it.  Changes nothing."""

from collections.abc import Awaitable, Callable

import anyio
import pydantic_core

from chappie_bridge.faces.chatgpt.tool import Turn
from chappie_bridge.wire.errors import BridgeError
from chappie_bridge.wire.requests import ListSessions, OperationView, Submit
from chappie_bridge.wire.values import Moving

FIRST_WORD = 0.5
"""Seconds in which a small transfer may end without a word ahead."""

EVERY = 1.0
"""Seconds between two words."""

Tell = Callable[[Moving], Awaitable[None]]


def teller(turn: Turn) -> Tell | None:
    """None: the client did not ask, or its way takes one message only."""
    token = turn.meta.get("progress_token", turn.meta.get("progressToken")) if turn.meta else None
    send = turn.exchange.tell
    if send is None or isinstance(token, bool) or not isinstance(token, str | int):
        return None
    told = -1

    async def tell(moving: Moving) -> None:
        nonlocal told
        if moving.moved <= told:
            return  # progress only ever grows
        told = moving.moved
        params: dict[str, object] = {"progressToken": token, "progress": moving.moved}
        if moving.size is not None:
            params["total"] = moving.size
        params["message"] = f"{moving.files} files, {moving.operation}"
        message = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        await send(pydantic_core.to_json(message))

    return tell


async def followed(turn: Turn, view: OperationView, tell: Tell, wait: float) -> OperationView:
    """The operation at its end or after `wait` seconds; meanwhile how far it is."""
    failure: BridgeError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_telling, turn, view, tell)
        try:
            view = await turn.switchboard.call(
                Submit(caller=turn.caller, operation=view.operation, wait=wait)
            )
        except BridgeError as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return view


async def _telling(turn: Turn, view: OperationView, tell: Tell) -> None:
    request = ListSessions(caller=turn.caller, session=view.target.session, limit=1)
    while True:
        try:
            rows = (await turn.switchboard.sessions(request)).sessions
        except BridgeError:
            return
        for moving in rows[0].transfers if rows else ():
            if moving.operation == view.operation:
                await tell(moving)
        await anyio.sleep(EVERY)
