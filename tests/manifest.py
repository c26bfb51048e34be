"""What the tests hold: faults of similar systems and sections of the contract, each with its tests.

A test that covers a case says so at the start of its docstring (`B62: …`, `B70 B71: …`); the list is
read from there and cannot rot.  `python -m tests.manifest` prints it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent
_IDS = re.compile(r"((?:[A-Z]\d\d[ ,]*)+)(?:[:.]|$)")

CASES = {
    "B01": "punkpeye/fastmcp#121",
    "B02": "modelcontextprotocol/python-sdk#1676",
    "B04": "anthropics/claude-ai-mcp#539",
    "B05": "indexnetwork/index#940",
    "B06": "modelcontextprotocol/ext-apps#458",
    "B08": "openai/tunnel-client#45",
    "B10": "openai/tunnel-client#63",
    "B11": "openai/tunnel-client#35",
    "B12": "robhunter/agentdeals#1098",
    "B13": "modelcontextprotocol/python-sdk#1798",
    "B14": "ankimcp/anki-mcp-server#34",
    "B15": "kernel/kernel-mcp-server#91",
    "B17": "gitroomhq/postiz-app#1781",
    "B18": "desktop-commander/remote-desktop-commander#1",
    "B20": "es617/obsidian-sync-mcp#13",
    "B21": "dbcls/togomcp#188",
    "B22": "nowledge-co/community#481",
    "B23": "supercorp-ai/supergateway#108",
    "B24": "supercorp-ai/supergateway#137",
    "B26": "supercorp-ai/supergateway#151",
    "B27": "odysseus-dev/odysseus#2338",
    "B28": "openai/codex#23042",
    "B30": "canonical/landscape-client#448",
    "B31": "anthropics/claude-code#93154",
    "B32": "sparfenyuk/mcp-proxy#237",
    "B33": "meawoppl/agent-portal#1256",
    "B34": "slopus/happy#1444",
    "B35": "slopus/happy#1694",
    "B36": "slopus/happy#725",
    "B37": "louislva/claude-peers-mcp#76",
    "B38": "louislva/claude-peers-mcp#37",
    "B40": "raysonmeng/agent-bridge#223",
    "B41": "anthropics/claude-code#37167",
    "B42": "anthropics/claude-code#91671",
    "B44": "tiann/hapi#991",
    "B45": "zai-org/feedback#605",
    "B46": "wonderwhy-er/DesktopCommanderMCP#586",
    "B47": "wonderwhy-er/DesktopCommanderMCP#652",
    "B48": "smg-project/smg#2441",
    "B49": "PrefectHQ/fastmcp#4124",
    "B50": "lynnswap/XcodeMCPKit#210",
    "B51": "NeoLabs-Systems/NeoAgent#86",
    "B52": "use-agent-os/agent-os#1563",
    "B53": "slopus/happy#656",
    "B54": "Dicklesworthstone/mcp_agent_mail#153",
    "B55": "openai/codex#8726",
    "B56": "openai/codex#45621",
    "B57": "0xMaxMa/claude-gateway#214",
    "B59": "NousResearch/hermes-agent#77884",
    "B60": "camunda/camunda#48999",
    "B61": "IBM/mcp-context-forge#2591",
    "B62": "use-agent-os/agent-os#1547",
    "B63": "viggy28/recall#29",
    "B64": "earendil-works/pi#6609",
    "B65": "The-AI-Alliance/cube-harness#368",
    "B67": "NousResearch/hermes-agent#109069",
    "B68": "earendil-works/pi#8598",
    "B69": "modelcontextprotocol/python-sdk#342",
    "B70": "cyanheads/toolkit-mcp-server#32",
    "B71": "NousResearch/hermes-agent#58791",
    "B72": "can1357/oh-my-pi#8687",
    "B73": "dotCMS/core#36241",
    "B74": "activeing123/mcptoon#19",
    "B75": "hurttlocker/o8#1541",
    "B76": "xinnan-tech/mcp-endpoint-server#10",
    "B77": "MoonshotAI/kimi-code#886",
    "B78": "FerroxLabs/wayland-core#72",
    "B79": "modelcontextprotocol/servers#3527",
    "B80": "openai/openai-apps-sdk-examples#185",
    "B81": "nikhilsrajan/fsd#74",
    "B82": "magic-wormhole/magic-wormhole#722",
    "B83": "schollz/croc#368",
    "B85": "wonderwhy-er/DesktopCommanderMCP#420",
    "B86": "mem0ai/mem0#7196",
    "B87": "kenn-io/msgvault#226",
    "B88": "Dicklesworthstone/mcp_agent_mail_rust#105",
    "B89": "Dicklesworthstone/mcp_agent_mail#24",
    "B90": "nicobailon/pi-intercom#15",
    "B91": "wonderwhy-er/DesktopCommanderMCP#410",
    "S01": "CVE-2025-6514",
    "S02": "CVE-2025-49596",
    "S03": "CVE-2025-66414",
    "S04": "CVE-2025-53110",
    "S05": "CVE-2025-53109",
    "S06": "CVE-2025-11491",
    "S07": "CVE-2026-25536",
    "S08": "CVE-2025-6515",
    "S09": "CVE-2026-25253",
    "S10": "CVE-2026-25593",
    "S11": "CVE-2026-53821",
    "S12": "CVE-2025-52882",
    "S13": "CVE-2025-68145",
    "S14": "CVE-2026-0621",
    "S15": "CVE-2025-53967",
    "S16": "server-side request forgery",
    "S17": "GHSA-8c8w-f7wp-2jr2",
    "S18": "a link without authentication or TLS",
    "S19": "injection through another agent's text",
    "S20": "tool definitions that change or instruct",
    "S21": "secrets in logs",
    "S22": "unbounded lines, bodies, waits",
    "S23": "token passthrough, wrong audience",
    "S24": "confused deputy in OAuth consent",
    "S25": "no authentication at all",
}
"""B: a public report of the fault elsewhere.  S: a published vulnerability, or its kind."""

CONTRACT: dict[str, tuple[str, ...]] = {
    "a client of either era runs a tool on a real bridge": (
        "story/test_up.py::test_a_client_of_either_era_runs_a_tool",
        "story/test_mcp.py::test_it_joins_the_running_broker",
    ),
    "the target is named, or the default, and never drifts": (
        "broker/test_broker.py::test_an_explicit_session_selects_one_operation_and_changes_nothing",
        "broker/test_broker.py::test_an_offline_default_is_never_replaced",
        "broker/test_broker.py::test_an_unknown_session_is_an_error_not_a_default",
    ),
    "two new conversations never get the same session": (
        "broker/test_broker.py::test_two_new_conversations_at_the_same_moment_get_different_sessions",
    ),
    "bindings and sessions survive the kill of either side": (
        "story/test_up.py::test_a_kill_costs_no_binding",
        "broker/test_broker.py::test_bindings_are_the_same_after_a_restart",
        "story/test_terminal.py::test_an_agent_goes_on_where_it_was_unless_told_otherwise",
    ),
    "nothing runs again silently": (
        "agents/test_session.py::test_a_repeated_batch_runs_once_and_is_told_again",
        "broker/test_broker.py::test_work_of_an_agent_that_restarted_is_interrupted_not_repeated",
        "broker/test_broker.py::test_a_batch_queued_when_the_broker_died_is_lost_not_run",
        "broker/test_broker.py::test_a_key_runs_once_and_joins",
    ),
    "a result that a client did not get comes again": (
        "broker/test_broker.py::test_what_was_not_sent_is_offered_again_and_says_so",
        "story/test_tunnel.py::test_a_result_that_nobody_fetched_comes_with_the_next_response",
    ),
    "what outlasts its request goes on and can be joined or stopped": (
        "broker/test_broker.py::test_what_outlasts_its_deadline_is_running_and_can_be_joined",
        "broker/test_broker.py::test_cancel_of_running_work_reaches_the_agent_and_keeps_finished_calls",
        "story/test_shell.py::test_an_operation_is_joined_and_cancelled",
    ),
    "the queue is fair and bounded": (
        "broker/test_queue.py::test_a_busy_caller_does_not_starve_another",
        "broker/test_broker.py::test_the_bounds_of_the_queue_answer_overloaded",
    ),
    "the whole array is validated before anything runs": (
        "agents/test_session.py::test_a_batch_with_one_malformed_call_runs_nothing",
    ),
    "results come in request order, text once": (
        "broker/test_broker.py::test_a_batch_returns_its_results_in_request_order",
        "faces/chatgpt/test_present.py::test_text_is_sent_once_and_data_untouched",
    ),
    "a long response loses its middle and says how to read it": (
        "faces/chatgpt/test_present.py::test_a_long_result_loses_its_middle_and_the_head_says_so",
    ),
    "a question outlives everything, and its answer comes once": (
        "story/test_questions.py::test_a_question_survives_every_kill_and_its_answer_comes_once",
        "broker/test_questions.py::test_an_answer_that_did_not_arrive_is_offered_again",
    ),
    "silence is no answer; of two the first counts": (
        "broker/test_questions.py::test_silence_is_no_answer_and_a_late_one_is_taken",
        "broker/test_questions.py::test_of_two_pages_the_first_answer_counts_and_the_second_is_told",
        "browser/test_question.py::test_who_is_shown_a_question_late_still_answers_it",
    ),
    "a result that comes after its doubt was told is delivered": (
        "broker/test_broker.py::test_an_outcome_arrives_also_when_the_doubt_has_been_told_before",
        "hosts/test_outcomes.py::test_a_cancel_is_answered_soon_and_what_ran_all_the_same_arrives_later",
    ),
    "an agent program is known by its ids, never by its words": (
        "agents/model/test_session.py::test_two_terminals_with_the_same_greeting_are_two_sessions",
        "hosts/test_outcomes.py::test_two_terminals_with_the_same_greeting_in_one_directory_are_two_sessions",
    ),
    "nothing runs while a model request waits": (
        "broker/test_broker.py::test_nothing_runs_while_a_model_request_waits",
    ),
    "tool names and parameters only grow, within their sizes": (
        "faces/chatgpt/test_definitions.py::test_the_tools_and_their_parameters_only_ever_grow",
        "faces/chatgpt/test_definitions.py::test_the_definitions_stay_small",
    ),
    "`up` checks itself without a trace and says where it is": (
        "story/test_up.py::test_the_self_check_leaves_no_trace_in_the_registry",
        "story/test_terminal.py::test_up_shows_what_happens_and_takes_what_is_typed",
    ),
    "a signal ends everything, what tools started included": (
        "story/test_up.py::test_a_signal_ends_all_of_it",
    ),
    "an agent that crashed comes back": ("story/test_up.py::test_an_agent_that_crashed_comes_back",),
    "one broker holds a state directory": (
        "story/test_up.py::test_two_on_one_state_directory_have_one_winner",
        "broker/test_state.py::test_of_two_brokers_that_start_at_once_exactly_one_wins",
    ),
    "a broker never dies with a stdio client": (
        "story/test_mcp.py::test_it_starts_a_broker_that_stays_when_it_leaves",
        "story/test_mcp.py::test_an_unused_broker_leaves",
    ),
    "exit codes: 0, 1 failed, 2 wrong use, 3 no broker": (
        "story/test_shell.py::test_exit_codes_and_words",
        "story/test_shell.py::test_without_a_broker_the_exit_code_is_three",
    ),
    "settings: defaults, file, environment, flags; never the current directory": (
        "test_config.py::test_flags_win_over_environment_over_file_over_defaults",
        "test_config.py::test_a_config_file_of_the_current_directory_is_never_read",
        "test_config.py::test_the_committed_config_file_is_the_defaults",
    ),
    "off loopback TLS or nothing; on it a credential": (
        "story/test_up.py::test_it_refuses_to_listen_off_loopback_without_tls",
        "story/test_up.py::test_without_the_secret_nobody_is_let_in",
    ),
    "an app finds its way from a 401, is let in by the owner, renews its tokens and is revoked": (
        "clients/test_oauth.py::test_an_app_finds_the_owner_is_let_in_works_renews_and_is_revoked",
        "faces/chatgpt/test_oauth.py::test_an_app_whose_consent_ends_during_a_call_learns_no_more",
    ),
    "the first ChatGPT user of a credential is pinned, another waits for the owner": (
        "security/test_principals.py::test_another_person_behind_a_credential_waits_for_the_owner",
        "broker/test_subjects.py::test_the_first_person_of_a_credential_is_pinned_and_another_waits",
    ),
    "an agent on a port needs its token, which is in no argument and no tool's environment": (
        "story/test_terminal.py::test_an_agent_joins_over_the_port_with_its_token",
    ),
    "`ask` waits for the owner, at the terminal or the dashboard": (
        "story/test_terminal.py::test_an_approval_is_given_on_the_terminal",
        "story/test_terminal.py::test_without_a_terminal_what_needs_approval_waits_for_the_owner",
    ),
    "the state is for its user alone, and no log holds a secret": (
        "story/test_up.py::test_what_it_keeps_is_for_its_user_alone",
        "story/test_up.py::test_the_logs_hold_no_secret",
    ),
    "the local function flow is carried out exactly as it is described, and one deviation is refused": (
        "codec/test_conversation.py::test_both_declared_signatures_are_made_as_they_were_sent",
        "codec/test_conversation.py::test_the_call_message_is_read_from_its_delta",
        "codec/test_conversation.py::test_the_return_message_is_made_as_it_was_sent",
        "faces/flow/test_turn.py::test_one_deviation_of_a_return_is_refused",
        "story/test_flow.py::test_a_turn_with_two_calls_one_of_them_a_base64_batch_of_three",
    ),
    "a stream that is cut or unknown runs nothing that is not whole, and nothing twice": (
        "codec/test_delta.py::test_any_messages_come_back_whatever_the_cuts",
        "faces/flow/test_turn.py::test_a_call_is_run_after_a_cut_only_if_its_status_says_that_it_is_whole",
        "faces/flow/test_turn.py::test_an_unknown_operation_fails_and_nothing_is_guessed",
        "faces/flow/test_turn.py::test_a_local_tool_that_is_not_ours_is_shown_and_never_run",
        "story/test_flow.py::test_a_call_that_was_cut_is_not_run",
    ),
    "the flow's endpoint, headers and answers are the owner's, used once and never shown": (
        "faces/flow/test_transport.py::test_no_endpoint_is_built_in",
        "faces/flow/test_transport.py::test_a_command_reads_the_challenge_and_a_file_is_used_once",
        "faces/flow/test_transport.py::test_a_refusal_says_what_the_endpoint_says_and_no_secret",
        "story/test_flow_command.py::test_what_fails_is_told_with_exit_code_one_and_without_a_secret",
    ),
    "`--help` imports click alone; an agent and a stdio broker import no face": (
        "cli/test_light.py::test_help_imports_click_alone",
        "cli/test_light.py::test_an_agent_process_imports_no_face",
        "cli/test_light.py::test_a_broker_without_ports_imports_no_face",
    ),
}
"""A promise of the program -> tests that hold it, as `path::name` below this directory."""


WAITING = frozenset({"B12", "B15", "B18", "B20", "B23", "B91"})
"""Cases that no test covers yet."""


def all_tests() -> Iterator[tuple[str, str]]:
    """`path::name` and docstring of every test."""
    for path in sorted(ROOT.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield f"{path.relative_to(ROOT)}::{node.name}", ast.get_docstring(node) or ""


def named(docstring: str) -> list[str]:
    """The cases that a docstring claims."""
    found = _IDS.match(docstring)
    return re.findall(r"[A-Z]\d\d", found[1]) if found else []


def covered() -> dict[str, list[str]]:
    """Case -> its tests."""
    found: dict[str, list[str]] = {case: [] for case in CASES}
    for test, docstring in all_tests():
        for case in named(docstring):
            found.setdefault(case, []).append(test)
    return found


if __name__ == "__main__":
    for case, held in covered().items():
        print(f"{case}  {CASES.get(case, 'unknown')}")
        for test in held:
            print(f"     {test}")
