"""A question in a client's words: for its page, for the model, for a reader without either.  Pure."""

from collections.abc import Sequence
from typing import Any

from chappie_bridge.codec.parts import compact
from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.question import Question, Stage

Json = dict[str, Any]

NAME, PATH = 100, 300
"""Characters shown of names and of paths."""

INLINE = 1_000
"""Characters of an answer that stand in the line which tells it; a longer one follows it as a text."""


def for_page(question: Question) -> Json:
    """`structuredContent.question`."""
    asked = question.asked
    shown: Json = {
        "id": question.id,
        "sessionId": question.session,
        "device": display(question.device, NAME),
        "cwd": display(question.cwd, PATH),
        "question": asked.question,
        "options": [option.model_dump(exclude_defaults=True) for option in asked.options],
        "allowMultiple": asked.allow_multiple,
        "status": question.stage,
        "loaded": question.loaded,
        "revision": question.revision,
        "askedAt": question.asked_at,
    }
    for name, said in (("header", asked.header), ("context", asked.context)):
        if said is not None:
            shown[name] = said
    if question.answer is not None:
        answer: Json = {"selections": list(question.answer.selections), "text": question.answer.text}
        shown["answer"] = {**answer, "skipped": True} if question.answer.skipped else answer
    return shown


def head(question: Question) -> Json:
    """The first line: which question, whose work."""
    return {
        "sessionId": question.session,
        "device": display(question.device, NAME),
        "cwd": display(question.cwd, PATH),
        "questionId": question.id,
        "status": question.stage,
    }


def web_answer(question: Question, *, again: bool) -> tuple[Json, str | None]:
    """The line that tells an answer, and the text after it when that is long."""
    asked, answer = question.asked, question.answer
    told: Json = {
        "questionId": question.id,
        "sessionId": question.session,
        "cwd": display(question.cwd, PATH),
    }
    if asked.header is not None:
        told["header"] = asked.header
    told["question"] = asked.question if len(asked.question) <= PATH else asked.question[:PATH] + "…"
    told["skipped"] = answer is None or answer.skipped
    if question.unseen:
        told["reason"] = "The question was not shown to the user in time."
    selections = () if answer is None else answer.selections
    told["choices"] = [
        {"index": index, "title": asked.options[index].title}
        for index in selections
        if index < len(asked.options)
    ]
    text = "" if answer is None else answer.text
    told["text"] = text if len(text) <= INLINE else ""
    if question.revision > 1:
        told["revision"] = question.revision
    line: Json = {"webAnswer": told}
    if again:
        line["again"] = True
    if len(text) <= INLINE:
        return line, None
    told["textFollows"] = True
    told["read"] = f"ask_assert {compact({'questionId': question.id})}"
    return line, text


def asked_words(question: Question) -> str:
    """For a model, and for a reader whose client shows no page."""
    asked = question.asked
    lines: list[str] = [f"Question for the user: {asked.question}", *_numbered(question)]
    call = f"ask_assert {compact({'questionId': question.id})}"
    lines.append(
        f"\nCall `{call}` now: it confirms that the user sees the question. If it says that nothing is shown,"
        " ask the same in your reply. The answer comes as `webAnswer` with a later result; until then go on"
        " with what does not depend on it."
    )
    return "\n".join(lines)


def asserted_words(question: Question) -> str:
    match question.stage:
        case Stage.ANSWERED:
            return "The user has answered."
        case Stage.SKIPPED if question.unseen:
            return "The question was shown late: it counts as skipped until the user answers."
        case Stage.SKIPPED:
            return "The user skipped the question."
        case _:
            return "The question is shown to the user. The answer comes as `webAnswer` with a later result."


def reported_words(question: Question, *, loaded: bool, answered: bool) -> str:
    if answered:
        return "Question skipped." if question.stage is Stage.SKIPPED else "Answer saved."
    return "Question widget loaded." if loaded else "Question state."


def _numbered(question: Question) -> Sequence[str]:
    return [
        f"{number}. {option.title}{' (recommended)' if option.recommended else ''}"
        for number, option in enumerate(question.asked.options, 1)
    ]
