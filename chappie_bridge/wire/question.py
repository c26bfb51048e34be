"""A question to the person in a chat: its life as one table, its parts, what may answer it.  Pure."""

from enum import StrEnum

from pydantic import Field

from .blocks import Value
from .errors import BadArguments
from .ids import QuestionId, SessionId
from .machine import Table

MAX_OPTIONS = 24
MAX_HEADER = 120
MAX_QUESTION = 4_000
MAX_CONTEXT = 8_000
MAX_TITLE = 200
MAX_DESCRIPTION = 500
MAX_ANSWER = 4_000
"""Characters."""


class Stage(StrEnum):
    ASKED = "asked"
    SHOWN = "shown"
    """Its widget reported that it is loaded."""
    ANSWERED = "answered"
    SKIPPED = "skipped"
    """By the person, or because nobody was shown it in time.  A later answer still counts."""


OPEN_QUESTIONS = frozenset({Stage.ASKED, Stage.SHOWN})

_S = Stage

QUESTION = Table(
    "question",
    {
        (_S.ASKED, "loaded"): _S.SHOWN,
        (_S.ASKED, "answer"): _S.ANSWERED,  # the report of loading was lost
        (_S.ASKED, "skip"): _S.SKIPPED,
        (_S.ASKED, "unseen"): _S.SKIPPED,  # no report in time: the model goes on without
        (_S.SHOWN, "loaded"): _S.SHOWN,  # shown once more, or a report that came twice
        (_S.SHOWN, "answer"): _S.ANSWERED,
        (_S.SHOWN, "skip"): _S.SKIPPED,
        (_S.SHOWN, "unseen"): _S.SHOWN,  # it loaded while the patience ran out
        (_S.ANSWERED, "loaded"): _S.ANSWERED,
        (_S.ANSWERED, "answer"): _S.ANSWERED,  # a revision
        (_S.ANSWERED, "skip"): _S.SKIPPED,  # taken back
        (_S.ANSWERED, "unseen"): _S.ANSWERED,
        (_S.SKIPPED, "loaded"): _S.SKIPPED,  # late: the model was told, the person may still answer
        (_S.SKIPPED, "answer"): _S.ANSWERED,  # late, as a revision
        (_S.SKIPPED, "skip"): _S.SKIPPED,  # a person skips what had counted as skipped
        (_S.SKIPPED, "unseen"): _S.SKIPPED,
    },
)


class Option(Value):
    title: str = Field(min_length=1, max_length=MAX_TITLE)
    description: str | None = Field(default=None, max_length=MAX_DESCRIPTION)
    recommended: bool = False


class Answer(Value):
    """`selections` are indices of options, ascending and different; `skipped` goes with nothing else."""

    selections: tuple[int, ...] = Field(default=(), max_length=MAX_OPTIONS)
    text: str = Field(default="", max_length=MAX_ANSWER)
    skipped: bool = False


class Asked(Value):
    """What is asked.  Without `options` the answer is text."""

    header: str | None = Field(default=None, max_length=MAX_HEADER)
    question: str = Field(min_length=1, max_length=MAX_QUESTION)
    context: str | None = Field(default=None, max_length=MAX_CONTEXT)
    options: tuple[Option, ...] = Field(default=(), max_length=MAX_OPTIONS)
    allow_multiple: bool = False


class Question(Value):
    """A question as it stands.  `session`, `device`, `cwd` say whose work it is about.

    `revision` counts the person's answers, skips included; 0 says that the person has not reacted, also
    when `stage` is `skipped`.  `loaded`: the widget has reported at least once.  Times are ISO 8601 UTC.
    """

    id: QuestionId
    session: SessionId
    device: str
    cwd: str
    asked: Asked
    stage: Stage
    loaded: bool
    revision: int
    asked_at: str
    answer: Answer | None = None

    @property
    def unseen(self) -> bool:
        """It counts as skipped although no person skipped it."""
        return self.stage is Stage.SKIPPED and self.revision == 0


def settled(asked: Asked, given: Answer) -> Answer:
    """`given` in the one form that equal answers share.

    :raises BadArguments: it does not answer what was asked; the text says why."""
    text = given.text.strip()
    if given.skipped:
        if given.selections or text:
            raise BadArguments("`skipped` goes with neither `selections` nor `text`.")
        return Answer(skipped=True)
    selections = tuple(sorted(set(given.selections)))
    if not selections and not text:
        raise BadArguments("An answer needs at least one selection or a text.")
    if selections and not 0 <= selections[0] <= selections[-1] < len(asked.options):
        there = f"they count from 0 to {len(asked.options) - 1}" if asked.options else "it has no options"
        raise BadArguments(f"`selections` names an option that the question does not have; {there}.")
    if len(selections) > 1 and not asked.allow_multiple:
        raise BadArguments("This question takes one selection.")
    return Answer(selections=selections, text=text)


def titles(asked: Asked, answer: Answer) -> tuple[str, ...]:
    """The options that were chosen."""
    return tuple(asked.options[index].title for index in answer.selections if index < len(asked.options))


def stated(asked: Asked) -> Asked:
    """`asked` without white space around its parts.

    :raises BadArguments: nothing is left of one that must be there."""
    if not asked.question.strip():
        raise BadArguments("`question` is empty.")
    for index, option in enumerate(asked.options):
        if not option.title.strip():
            raise BadArguments(f"`options[{index}].title` is empty.")
    return Asked(
        header=_stripped(asked.header),
        question=asked.question.strip(),
        context=_stripped(asked.context),
        options=tuple(
            Option(
                title=each.title.strip(),
                description=_stripped(each.description),
                recommended=each.recommended,
            )
            for each in asked.options
        ),
        allow_multiple=asked.allow_multiple,
    )


def _stripped(text: str | None) -> str | None:
    return (text or "").strip() or None
