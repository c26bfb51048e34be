"""The tool `transfer`: files between the client, the session and other sessions.  Moves no byte itself."""

from typing import Annotated, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema

from chappie_bridge.faces.chatgpt.exchange import tunnel_request
from chappie_bridge.faces.chatgpt.present import Presented
from chappie_bridge.faces.chatgpt.progress import FIRST_WORD, followed, teller
from chappie_bridge.faces.chatgpt.resources import RESOURCE_MAX
from chappie_bridge.faces.chatgpt.tool import MAX_FILTER, Arguments, Id, Target, Tool, Turn, Wait, session_id
from chappie_bridge.wire.batch import OPEN
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.requests import Transfer
from chappie_bridge.wire.values import MAX_FILES, Attachment, RemotePaths

MAX_PATH = 4 * MAX_FILTER

FILE_SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "download_url": {"type": "string"},
        "file_id": {"type": "string"},
        "mime_type": {"type": "string"},
        "file_name": {"type": "string"},
    },
    "required": ["download_url", "file_id"],
    "additionalProperties": False,
}
"""A host that hands over files takes exactly this and nothing near it (facts/chatgpt.md §3.1)."""


class _File(BaseModel):
    """What a host puts in the place of a file; it may say more than it declared."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    download_url: str
    file_id: str
    mime_type: str | None = None
    file_name: str | None = None


def _objects(value: object) -> object:
    if isinstance(value, list):
        for index, each in enumerate(value):
            if not isinstance(each, dict):
                raise ValueError(
                    f"[{index}] is not the object {{download_url, file_id}} but bare text: this client did"
                    " not hand over the file. Attach it to the chat again, then pass its path in /mnt/data."
                )
    return value


Files = Annotated[
    list[_File],
    BeforeValidator(_objects),
    Field(min_length=1, max_length=MAX_FILES),
    WithJsonSchema(
        {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_FILES,
            "description": "Files of this chat (/mnt/data/report.pdf), written to `paths` by position.",
            "items": FILE_SCHEMA,
        }
    ),
]
Paths = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_PATH)]], Field(min_length=1, max_length=MAX_FILES)
]


class Remote(Arguments):
    session_id: Id
    paths: Paths


class TransferArguments(Arguments):
    paths: Paths = Field(
        description="Files on the session's device, relative to its directory; or chappie:// references."
    )
    files: Files | None = None
    source: Remote | None = Field(None, alias="from", description="Copy from there to `paths`.")
    to: Remote | None = Field(None, description="Copy `paths` to there.")
    overwrite: bool = Field(False, description="Replace existing targets.")
    wait: Wait | None = None
    session_id: Target | None = None


async def _transfer(turn: Turn, given: TransferArguments) -> Presented:
    files = given.files
    wait = turn.exchange.left(turn.patience if given.wait is None else given.wait)
    tell = teller(turn)
    view = await turn.switchboard.transfer(
        Transfer(
            caller=turn.caller,
            session=session_id(given.session_id),
            paths=tuple(given.paths),
            attachments=None
            if files is None
            else tuple(Attachment.model_validate(each.model_dump()) for each in files),
            source=_remote(given.source),
            sink=_remote(given.to),
            overwrite=given.overwrite,
            limit=RESOURCE_MAX,
            tunnel_request=tunnel_request(turn.meta),
            wait=wait if tell is None else min(wait, FIRST_WORD),
        )
    )
    if tell is not None and view.status in OPEN:
        if view.companions.receipt is not None:
            turn.switchboard.told(view.companions.receipt, sent=False)  # all of it comes with the last word
        view = await followed(turn, view, tell, turn.exchange.left(wait))
    turn.exchange.carry(view.companions.receipt)
    return await turn.present.operation(view, turn.exchange)


def _remote(given: Remote | None) -> RemotePaths | None:
    if given is None:
        return None
    return RemotePaths(session=cast("SessionId", given.session_id), paths=tuple(given.paths))


TRANSFER = Tool(
    name="transfer",
    title="Transfer files",
    description=(
        "Use this to move files: with `files` from this chat to the session's device; with `from` or `to`"
        " between sessions, on any devices; with `paths` alone from the session to this chat, as links to"
        " read. Give at most one of `files`, `from`, `to`; paths pair by position. Each file has its own"
        " outcome. Directories: make an archive first."
    ),
    read_only=False,
    destructive=True,
    idempotent=False,
    open_world=True,
    arguments=TransferArguments,
    run=_transfer,
    meta={"openai/fileParams": ["files"]},
)
