"""Whose request it is: the program, its session, its sub-agent, its directory, its tools."""

import pytest
from pydantic import JsonValue

from chappie_bridge.codec import anthropic_messages, openai_chat, openai_responses
from chappie_bridge.codec.programs import SPAWNERS, identify, is_failed, visible
from chappie_bridge.codec.turn import OfferedTool
from chappie_bridge.wire.errors import BadArguments
from tests.codec.host_requests import decoded, host_requests

NOTHING_SAID: JsonValue = {"messages": []}


def test_our_own_header_names_the_program_before_the_user_agent() -> None:
    assert identify({"x-chappie-host": "qwen", "user-agent": "pi/9"}, "") == ("qwen", None)
    assert identify({"x-chappie-host": "PI", "user-agent": "pi/9"}, "") == ("pi", "9")


def test_a_name_that_we_do_not_know_says_nothing() -> None:
    assert identify({"x-chappie-host": "emacs", "user-agent": "opencode/2 x"}, "") == ("opencode", "2")
    assert identify({"user-agent": "curl/8"}, "You are helpful.") == ("other", None)


def test_codex_behind_its_app_server_has_the_name_of_its_driver() -> None:
    headers = {"user-agent": "vim/0.171.0 (x)", "x-codex-turn-metadata": "{}"}
    assert identify(headers, "") == ("codex", "0.171.0")


@pytest.mark.parametrize("name", ["thread-id", "session-id", "session_id", "x-session-id"])
@pytest.mark.parametrize("value", ["a/b", "a\nb", "a" * 257])
def test_an_id_that_cannot_be_one_is_refused(name: str, value: str) -> None:
    with pytest.raises(BadArguments):
        openai_chat.decode({name: value}, NOTHING_SAID)


def test_a_thread_id_is_more_exact_than_a_session_id_and_that_than_a_cache_key() -> None:
    body: JsonValue = {"input": [], "prompt_cache_key": "key"}
    headers = {"x-chappie-host": "codex", "session-id": "session", "thread-id": "thread"}
    assert openai_responses.decode(headers, body).session_id == "thread"
    del headers["thread-id"]
    assert openai_responses.decode(headers, body).session_id == "session"
    del headers["session-id"]
    assert openai_responses.decode(headers, body).session_id == "key"


def test_codex_tells_its_ids_in_the_body_as_well() -> None:
    body: JsonValue = {"input": [], "client_metadata": {"thread_id": "thread", "session_id": "session"}}
    turn = openai_responses.decode({"x-chappie-host": "codex"}, body)
    assert turn.session_id == "thread"


def test_a_cache_key_of_an_unknown_program_is_no_session() -> None:
    """It may be one constant for every session of an application."""
    turn = openai_chat.decode({}, {"messages": [], "prompt_cache_key": "my-app"})
    assert turn.session.how == "new"


def test_claude_codes_session_stands_in_the_body_too() -> None:
    body: JsonValue = {"messages": [], "metadata": {"user_id": '{"session_id":"s-1"}'}}
    assert anthropic_messages.decode({"x-chappie-host": "claude"}, body).session_id == "s-1"


def test_a_sub_agent_without_an_id_has_no_session_id_of_its_own() -> None:
    """Several may run at once: a made-up name would join them."""
    system = "x-anthropic-billing-header: cc_version=1; cc_is_subagent=true;"
    headers = {"x-chappie-host": "claude", "x-claude-code-session-id": "s"}
    turn = anthropic_messages.decode(headers, {"messages": [], "system": system})
    assert turn.agent
    assert turn.agent.id is None
    assert turn.session.id == "s"
    assert turn.session_id is None


def test_a_codex_sub_agent_of_a_sub_agent_belongs_to_the_root_and_names_its_parent() -> None:
    headers = {
        "x-chappie-host": "codex",
        "session-id": "root",
        "thread-id": "grandchild",
        "x-codex-parent-thread-id": "child",
        "x-openai-subagent": "collab_spawn",
    }
    turn = openai_responses.decode(headers, {"input": []})
    assert turn.session_id == "root/grandchild"
    assert turn.agent
    assert turn.agent.parent == "child"


def test_a_codex_thread_of_its_own_is_a_session_not_a_sub_agent() -> None:
    headers = {"x-chappie-host": "codex", "session-id": "root", "thread-id": "other"}
    assert openai_responses.decode(headers, {"input": []}).session_id == "other"


def test_the_directory_in_our_header_wins_over_prose() -> None:
    body: JsonValue = {"messages": [{"role": "system", "content": "<cwd>\n/prose\n</cwd>"}]}
    headers = {"x-chappie-host": "pi"}
    assert openai_chat.decode(headers, body).cwd == "/prose"
    assert openai_chat.decode({**headers, "x-chappie-cwd": "/header"}, body).cwd == "/header"


def test_the_last_directory_that_codex_told_counts() -> None:
    items: list[JsonValue] = [
        {"role": "user", "content": f"<environment_context>\n  <cwd>{cwd}</cwd>\n</environment_context>"}
        for cwd in ("/first", "/last")
    ]
    assert openai_responses.decode({"x-chappie-host": "codex"}, {"input": items}).cwd == "/last"


def test_claude_codes_live_directory_wins_over_the_one_it_began_in() -> None:
    body: dict[str, JsonValue] = {
        "messages": [{"role": "system", "content": " - Primary working directory: /began"}],
        "safeguards": [{"classifier_context": {"live_cwd": "/now"}}],
    }
    headers = {"x-chappie-host": "claude"}
    assert anthropic_messages.decode(headers, body).cwd == "/now"
    del body["safeguards"]
    assert anthropic_messages.decode(headers, body).cwd == "/began"


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("codex-13", {"multi_agent_v1.spawn_agent", "multi_agent_v1.wait_agent"}),
        ("codex-03", {"mcp__codex_tui.create_thread", "mcp__codex_tui.fork_thread"}),
        ("opencode-02", {"task"}),
        ("claude-01", {"Agent", "Workflow"}),
        ("qwen-01", {"agent"}),
        ("cline-01", {"spawn_agent", "team_spawn_teammate"}),
    ],
)
def test_tools_that_start_sub_agents_are_hidden_unless_wanted(name: str, gone: set[str]) -> None:
    turn = decoded(name)
    every = {tool.full_name for tool in turn.tools}
    shown = {tool.full_name for tool in visible(turn.program, turn.tools, subagents=False)}
    assert gone <= every
    assert not gone & shown
    assert len(every - shown) >= len(gone)
    assert visible(turn.program, turn.tools, subagents=True) == turn.tools


def test_each_hidden_name_was_seen_in_a_real_request() -> None:
    seen: dict[str, set[str]] = {}
    for name, request in host_requests().items():
        if request.method == "POST":
            turn = decoded(name)
            names = {each for tool in turn.tools for each in (tool.full_name, tool.namespace or "")}
            seen.setdefault(turn.program, set()).update(names)
    for program, hidden in SPAWNERS.items():
        assert hidden <= seen[program]


def test_hosted_tools_and_placeholders_are_never_offered() -> None:
    assert [tool.name for tool in decoded("codex-26").tools][-1] == "update_goal"
    assert len(decoded("codex-26").other_tools) == 2  # tool_search, web_search
    assert "DeferredToolPlaceholder" not in {tool.name for tool in decoded("claude-01").tools}


def test_a_deferred_tool_that_was_found_is_offered() -> None:
    before, after = ({tool.name for tool in decoded(name).tools} for name in ("claude-40", "claude-41"))
    assert after - before == {"NotebookEdit", "WebFetch"}


def test_a_custom_tool_is_described_as_one_text() -> None:
    tool = next(tool for tool in decoded("codex-17").tools if tool.name == "apply_patch")
    assert tool.kind == "custom"
    parameters = tool.definition().parameters
    assert parameters["required"] == ["input"]
    assert "lark" in str(parameters)


def test_a_tool_in_a_namespace_has_both_names() -> None:
    tool = OfferedTool("function", "spawn_agent", "", {"type": "object"}, "multi_agent_v1")
    assert tool.definition().name == "multi_agent_v1.spawn_agent"


@pytest.mark.parametrize(("code", "failed"), [("3", True), ("-1", True), ("0", False), ("(none)", False)])
def test_qwens_shell_says_in_its_report_that_a_command_failed(code: str, failed: bool) -> None:
    report = f"Error: (none)\nExit Code: {code}\nSignal: (none)\nProcess Group PGID: 24813"
    text = f"Command: cat log\nDirectory: (root)\nOutput: Exit Code: 9\n{report}"
    assert is_failed("qwen", "run_shell_command", text) is failed
    assert not is_failed("qwen", "read_file", text)
