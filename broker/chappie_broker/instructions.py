"""The words of `initialization` and of model requests."""

EXECUTOR = (
    "You are the executing assistant of this session. When you resume work, read recent `history` first; "
    "read the file at globalAgents.path when it is given. Run tools with `call`, report progress and the end "
    "of work with `chat`, and react to local input that accompanies results."
)

OBSERVER = (
    "This conversation has just joined this session elsewhere and is working there. Only observe: follow "
    "with `history` using `observer:true`, `wait:true` and `after`, do not run tools, and report the "
    "recorded outcome. Call `init` again only when that work has ended."
)


def model_request(kind: str, *, reply: str, run: str) -> str:
    """`reply` and `run` are the names of the tools in the reader's list."""
    what = "a context summary" if kind == "compaction" else f"a {kind} response"
    return (
        f"The agent asks its model for {what}; the input follows. Read `history` if you need context, answer "
        f"with `{reply}` passing this sessionId and replyTo, then send the tools still needed: `{run}` runs "
        "nothing until then."
    )
