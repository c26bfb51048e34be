"""The closed list of errors (SPEC §6).

A class is a fact; its docstring is the text for the person (what happened, what to do); `code`,
`retryable` and `executed` are for the program.  Translated at one boundary each way: `failure()`
where an error leaves a process, `from_failure()` where it comes back in.
"""

from enum import StrEnum
from inspect import cleandoc
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, JsonValue


class Executed(StrEnum):
    """Did a tool of the request run?"""

    NO = "no"
    YES = "yes"
    UNKNOWN = "unknown"


class Failure(BaseModel):
    """An error as it travels.  `data` holds what the code promises (a list of sessions, a position)."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    code: str
    message: str
    retryable: bool = False
    executed: Executed = Executed.NO
    hint: str | None = None
    data: dict[str, JsonValue] | None = None


class BridgeError(Exception):
    """Something went wrong in the bridge."""

    code: ClassVar[str]
    retryable: ClassVar[bool] = False
    executed: Executed = Executed.NO

    def __init__(
        self,
        message: str | None = None,
        *,
        hint: str | None = None,
        executed: Executed | None = None,
        data: dict[str, JsonValue] | None = None,
    ) -> None:
        """`message` defaults to the class's docstring; `hint` says what to do next."""
        super().__init__(message or cleandoc(type(self).__doc__ or self.code).replace("\n", " "))
        self.hint = hint
        self.data = data
        if executed is not None:
            self.executed = executed

    def failure(self) -> Failure:
        return Failure(
            code=self.code,
            message=str(self),
            retryable=self.retryable,
            executed=self.executed,
            hint=self.hint,
            data=self.data,
        )


class BadArguments(BridgeError):
    """The arguments do not fit this tool. Correct them and send the request again."""

    code = "bad_arguments"


class BadBase64(BridgeError):
    """`base64` is not the Base64 form of a `calls` array. Encode the array only, as UTF-8 JSON."""

    code = "bad_base64"


class NoConversation(BridgeError):
    """This client does not say which conversation it is. Pass `sessionId` with every tool."""

    code = "no_conversation"


class NoSession(BridgeError):
    """No agent session is online. Start one with `chappie-bridge agent` in the project's directory."""

    code, retryable = "no_session", True


class NoFreeSession(BridgeError):
    """Every online session belongs to another conversation. Call `init` with the `sessionId` to share."""

    code = "no_free_session"


class UnknownSession(BridgeError):
    """No session has this id. Call `sessions` for the list."""

    code = "unknown_session"


class SessionOffline(BridgeError):
    """The session is registered but its device is not connected. Start the agent there, or choose
    another session with `sessions`."""

    code, retryable = "session_offline", True


class SessionConflict(BridgeError):
    """This session id belongs to another device. Start the agent with `--new`."""

    code = "session_conflict"


class OpenElsewhere(SessionConflict):
    """This session is open in another process of this device. If that one is dead, its connection is closed
    within half a minute."""

    retryable = True


class NotListening(BridgeError):
    """The agent program is not waiting for ChatGPT. Select the model `chappie` there."""

    code, retryable = "not_listening", True


class UnknownOperation(BridgeError):
    """No operation has this id, or it is older than 24 hours. Read `history` for its outcome."""

    code = "unknown_operation"


class UnknownEntry(BridgeError):
    """The transcript has no such entry."""

    code = "unknown_entry"


class UnknownQuestion(BridgeError):
    """This conversation has no such question."""

    code = "unknown_question"


class QuestionSkipped(BridgeError):
    """The question's widget did not load, so the question counts as skipped."""

    code = "question_skipped"


class RequestClosed(BridgeError):
    """That model request was answered already or has ended. Read `history`, then go on."""

    code = "request_closed"


class KeyReused(BridgeError):
    """This `key` was used for another request. Use a new key for new work."""

    code = "key_reused"


class Overloaded(BridgeError):
    """Too much is waiting. Wait for running work to end, then send this again."""

    code, retryable = "overloaded", True


class TooLarge(BridgeError):
    """The request is larger than the bridge accepts. Send it in parts."""

    code = "too_large"


class Timeout(BridgeError):
    """No answer came in time."""

    code, retryable, executed = "timeout", True, Executed.UNKNOWN


class Interrupted(BridgeError):
    """The agent was lost while this ran; whether it finished is not known. Look before repeating it."""

    code, executed = "interrupted", Executed.UNKNOWN


class Lost(BridgeError):
    """This never reached the agent, so nothing ran. Send it again."""

    code, retryable = "lost", True


class Cancelled(BridgeError):
    """This was cancelled."""

    code = "cancelled"


class Denied(BridgeError):
    """The owner of the device did not allow this."""

    code = "denied"


class Forbidden(BridgeError):
    """This credential may not do that."""

    code = "forbidden"


class PathExists(BridgeError):
    """The target exists. Pass `overwrite:true` to replace it."""

    code = "path_exists"


class PathMissing(BridgeError):
    """There is no such file."""

    code = "path_missing"


class NotAFile(BridgeError):
    """That is not a regular file. Make an archive of a directory first."""

    code = "not_a_file"


class SourceChanged(BridgeError):
    """The source changed since it was offered. Export it again."""

    code = "source_changed"


class DownloadFailed(BridgeError):
    """The file could not be downloaded."""

    code, retryable = "download_failed", True


class Checksum(BridgeError):
    """The bytes that arrived are not the bytes that were sent. Nothing was written."""

    code, retryable = "checksum", True


class DiskFull(BridgeError):
    """The disk is full. Free some space, then try again."""

    code = "disk_full"


class VersionMismatch(BridgeError):
    """The two ends speak different versions. Upgrade the older one."""

    code = "version_mismatch"


class Unsupported(BridgeError):
    """The other end does not know this request. Upgrade it."""

    code = "unsupported"


class Internal(BridgeError):
    """The bridge failed. Its log holds the details under this id."""

    code, executed = "internal", Executed.UNKNOWN


BY_CODE: dict[str, type[BridgeError]] = {kind.code: kind for kind in BridgeError.__subclasses__()}
"""The closed list: a code that is not in it never leaves the program."""


def from_failure(failure: Failure) -> BridgeError:
    """The error that `failure` describes; a code from a newer version becomes `internal`."""
    kind = BY_CODE.get(failure.code, Internal)
    return kind(failure.message, hint=failure.hint, executed=failure.executed, data=failure.data)
