"""A batch is checked against the tools of the very request before anything is answered."""

import math

import pytest
from pydantic import JsonValue

from chappie_bridge.codec.calling import calls_for
from chappie_bridge.codec.turn import AnswerCall, OfferedTool
from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.ids import CallId
from chappie_bridge.wire.values import ToolCall
from tests.codec.host_requests import decoded

STRICT = OfferedTool(
    "function",
    "strict",
    "",
    {
        "type": "object",
        "properties": {"count": {"type": "integer"}, "names": {"type": ["array", "null"]}, "any": {}},
        "required": ["count"],
        "additionalProperties": False,
    },
)


def test_a_call_keeps_its_id_and_its_arguments() -> None:
    tools = decoded("pi-01").tools
    (call,) = calls_for(tools, [_call("read", path="a.txt", limit=3)])
    assert call == AnswerCall(CallId("call_chp_1"), "read", {"path": "a.txt", "limit": 3})


def test_codex_gets_a_patch_raw_and_a_namespace_apart() -> None:
    patch = "*** Begin Patch\n*** End Patch\n"
    (raw,) = calls_for(decoded("codex-17").tools, [_call("apply_patch", input=patch)])
    assert raw == AnswerCall(CallId("call_chp_1"), "apply_patch", {}, None, patch)
    (spaced,) = calls_for(decoded("codex-13").tools, [_call("multi_agent_v1.spawn_agent", message="hi")])
    assert (spaced.namespace, spaced.name) == ("multi_agent_v1", "spawn_agent")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (("raed", {"path": "a"}), "No tool `raed` here; there is `read`."),
        (("xyzzy", {}), "No tool `xyzzy` here. Call `tools` for the list."),
        (("read", {}), "`read` needs `path`."),
        (("read", {"path": 3}), "`path` of `read` must be string."),
        (("strict", {"count": 1, "more": 1}), "`strict` has no `more`."),
        (("strict", {"count": True}), "`count` of `strict` must be integer."),
        (("strict", {"count": 1, "names": "a"}), "`names` of `strict` must be array or null."),
        (("strict", {"count": 1, "any": math.nan}), "`strict` has a number that JSON cannot hold."),
        (("apply_patch", {"patch": "x"}), "`apply_patch` needs `input`."),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    call: tuple[str, dict[str, JsonValue]], sentence: str
) -> None:
    tools = (*decoded("pi-01").tools, *decoded("codex-17").tools, STRICT)
    with pytest.raises(BadArguments, match="Call 1: ") as caught:
        calls_for(tools, [_call("read", path="fine"), _call(call[0], **call[1])])
    assert sentence in str(caught.value)
    assert caught.value.executed == "no"


def test_what_a_schema_leaves_open_is_left_to_the_program() -> None:
    assert calls_for([STRICT], [_call("strict", count=2.0, any=[1], names=None)])
    odd = OfferedTool("function", "odd", "", {"properties": {"a": {"type": "future"}}})
    assert calls_for([odd], [_call("odd", a=1, b=2)])


def test_a_refusal_is_bounded() -> None:
    with pytest.raises(BadArguments, match=r"And 12 more\.$"):
        calls_for([STRICT], [_call("strict")] * 20)


def test_a_hidden_tool_is_no_tool() -> None:
    with pytest.raises(BadArguments, match="No tool `task` here"):
        calls_for([tool for tool in decoded("opencode-02").tools if tool.name != "task"], [_call("task")])


def _call(tool: str, **arguments: JsonValue) -> ToolCall:
    return ToolCall(id=CallId("call_chp_1"), name=tool, arguments=arguments)
