"""The tools `ask`, `ask_assert`, and `answer`, which only the question's page calls.  Keep no question."""

from typing import Annotated

from pydantic import Field, JsonValue

from chappie_bridge.faces.chatgpt import asking, widget
from chappie_bridge.faces.chatgpt.exchange import tunnel_request
from chappie_bridge.faces.chatgpt.present import Presented
from chappie_bridge.faces.chatgpt.tool import Arguments, Id, Target, Tool, Turn, session_id
from chappie_bridge.wire.ids import QuestionId
from chappie_bridge.wire.question import (
    MAX_ANSWER,
    MAX_CONTEXT,
    MAX_DESCRIPTION,
    MAX_HEADER,
    MAX_OPTIONS,
    MAX_QUESTION,
    MAX_TITLE,
    Answer,
    Asked,
    Option,
)
from chappie_bridge.wire.requests import Ask, AssertAsked, Respond

ASSERT_WAIT = 10.0
"""Seconds that `ask_assert` waits for the page."""

OUTPUT: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "question": {
            "type": "object",
            "properties": {
                "id": {"type": "string"},
                "status": {"type": "string", "enum": ["asked", "shown", "answered", "skipped"]},
            },
            "required": ["id", "status"],
            "additionalProperties": True,
        },
        "text": {"type": "string"},
    },
    "required": ["question"],
    "additionalProperties": False,
}
"""Of all three: hosts want it declared where `structuredContent` comes."""


class OptionArguments(Arguments):
    title: str = Field(min_length=1, max_length=MAX_TITLE)
    description: str | None = Field(default=None, max_length=MAX_DESCRIPTION)
    recommended: bool = False


class AskArguments(Arguments):
    header: str | None = Field(
        default=None, max_length=MAX_HEADER, description="A few words above the question."
    )
    question: str = Field(min_length=1, max_length=MAX_QUESTION)
    context: str | None = Field(
        default=None, max_length=MAX_CONTEXT, description="What the user needs to know to decide."
    )
    options: list[OptionArguments] | None = Field(
        default=None,
        max_length=MAX_OPTIONS,
        description="Omit for a text answer; text is taken beside options, too.",
    )
    allow_multiple: bool = Field(default=False, description="Several options may be chosen.")
    session_id: Target | None = None


class AssertArguments(Arguments):
    question_id: Id


class AnswerValue(Arguments):
    selections: Annotated[list[int], Field(max_length=MAX_OPTIONS)] | None = Field(
        default=None, description="Indices of options, from 0."
    )
    text: str = Field(default="", max_length=MAX_ANSWER)
    skipped: bool = False


class AnswerArguments(Arguments):
    question_id: Id
    loaded: bool = Field(default=False, description="The page shows the question.")
    answer: AnswerValue | None = None
    revision: int | None = Field(default=None, ge=0, description="The revision that the page shows.")


async def _ask(turn: Turn, given: AskArguments) -> Presented:
    view = await turn.switchboard.ask(
        Ask(
            caller=turn.caller,
            session=session_id(given.session_id),
            asked=Asked(
                header=given.header,
                question=given.question,
                context=given.context,
                options=tuple(Option.model_validate(each.model_dump()) for each in given.options or ()),
                allow_multiple=given.allow_multiple,
            ),
            tunnel_request=tunnel_request(turn.meta),
            wait=turn.exchange.left(turn.patience),
        )
    )
    turn.exchange.carry(view.companions.receipt)
    return await turn.present.question(view, asking.asked_words(view.question), turn.exchange)


async def _ask_assert(turn: Turn, given: AssertArguments) -> Presented:
    request = AssertAsked(
        caller=turn.caller, question=QuestionId(given.question_id), wait=turn.exchange.left(ASSERT_WAIT)
    )
    view = await turn.switchboard.ask_assert(request)
    turn.exchange.carry(view.companions.receipt)
    words = asking.asserted_words(view.question)
    return await turn.present.question(view, words, turn.exchange, answer=True)


async def _answer(turn: Turn, given: AnswerArguments) -> Presented:
    answer = given.answer
    request = Respond(
        caller=turn.caller,
        question=QuestionId(given.question_id),
        loaded=given.loaded,
        answer=None
        if answer is None
        else Answer(selections=tuple(answer.selections or ()), text=answer.text, skipped=answer.skipped),
        revision=given.revision,
    )
    view = await turn.switchboard.answer(request)
    words = asking.reported_words(view.question, loaded=given.loaded, answered=answer is not None)
    return await turn.present.question(view, words, turn.exchange)


QUESTION_TOOLS = (
    Tool(
        name="ask",
        title="Ask the user",
        description=(
            "Use this to ask the user in this chat when their decision or knowledge is needed: with"
            " `options` to choose from, or without for a text. It is saved and returns at once; then call"
            " `ask_assert`. The answer, its revision or a skip comes as `webAnswer` with a later result."
        ),
        read_only=False,
        destructive=False,
        idempotent=False,
        open_world=False,
        arguments=AskArguments,
        run=_ask,
        output=OUTPUT,
        meta={
            "ui": {"resourceUri": widget.address(), "visibility": ["model"]},
            "openai/outputTemplate": widget.address(),
        },
    ),
    Tool(
        name="ask_assert",
        title="Confirm that a question is shown",
        description=(
            "Call this directly after `ask` with its `questionId`: it confirms that the question's page has"
            " loaded, or after 10 seconds counts the question as skipped and says so with an error. It also"
            " reads how an earlier question stands, with its answer."
        ),
        read_only=False,
        destructive=False,
        idempotent=True,
        open_world=False,
        arguments=AssertArguments,
        run=_ask_assert,
        output=OUTPUT,
        meta={"ui": {"visibility": ["model"]}},
    ),
    Tool(
        name="answer",
        title="Answer a question",
        description=(
            "For the question's own page, not for an assistant: the page calls it when it has loaded, and to"
            " report what the user answered there. Never answer in the user's place. Use this nowhere else."
        ),
        read_only=False,
        destructive=False,
        idempotent=False,
        open_world=False,
        arguments=AnswerArguments,
        run=_answer,
        output=OUTPUT,
        meta={
            "ui": {"visibility": ["app"]},
            "openai/widgetAccessible": True,
            "openai/visibility": "private",
        },
    ),
)
