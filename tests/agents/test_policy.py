"""What the owner allows: roots by components, rules in order, questions that the first answer settles."""

from collections.abc import Callable
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath

import anyio
import pytest
from chappie_agents import policy as policy_module
from chappie_agents.policy import (
    Answer,
    Approval,
    Approvals,
    Decision,
    Policy,
    Rule,
    Scope,
    inside,
)
from hypothesis import given
from hypothesis import strategies as st

from chappie_bridge.wire.errors import BadArguments, Denied, Overloaded, RequestClosed
from chappie_bridge.wire.ids import ConversationId, SessionId

pytestmark = pytest.mark.anyio

SESSION = SessionId("s_test")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """`b` is the root; `b_evil` beside it is not."""
    base = tmp_path.resolve()
    for name in ("a/b/sub", "a/b_evil", "outside"):
        (base / name).mkdir(parents=True)
    (base / "a/b/link").symlink_to(base / "outside")
    (base / "a/b/file-link").symlink_to(base / "outside/secret")
    (base / "a/b/dangling").symlink_to(base / "outside/new")
    (base / "a/b/inner").symlink_to("sub")
    return base / "a/b"


async def permit(policy: Policy, path: str, cwd: Path, *, tool: str = "write", writing: bool = True) -> Path:
    return await policy.permit(path, cwd=cwd, tool=tool, writing=writing, session=SESSION)


@pytest.mark.parametrize(
    "path",
    [
        "../b_evil/x",
        "{root}_evil/x",
        "..",
        "../c",
        "sub/../../c",
        "/",
        "//",
        "//etc/passwd",
        "/etc/passwd",
        "~/x",
        "link/new.txt",
        "link/deeper/new.txt",
        "file-link",
        "dangling",
        "inner/../../c",
    ],
)
@pytest.mark.parametrize("writing", [True, False])
def test_a_path_that_leads_out_of_the_root_is_denied(root: Path, path: str, writing: bool) -> None:
    """S04 S05 B85: by components, after links, for files that are still to be made too."""
    policy = Policy(roots=(root,))
    _, decision = policy.resolve(path.format(root=root), root, "read", writing)
    assert decision is Decision.DENY


@pytest.mark.parametrize("path", ["%2e%2e/c", "sub/%2E%2E/x", ".%2e/c", "sub/..%2fx", "%2e%2e%2f%2e%2e/c"])
async def test_encoded_dots_are_refused_and_never_decoded(root: Path, path: str) -> None:
    """S04: `%2e%2e`."""
    with pytest.raises(Denied, match="encoded"):
        await permit(Policy(), path, root)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("sub/x", "sub/x"),
        ("./sub/../x", "x"),
        ("inner/x", "sub/x"),
        ("{root}", "."),
        ("{root}/new/x/", "new/x"),
        ("...", "..."),
        ("..x", "..x"),
        ("100%/%41", "100%/%41"),
        ("a\nb", "a\nb"),
    ],
)
async def test_a_path_inside_the_root_is_allowed(root: Path, path: str, found: str) -> None:
    assert await permit(Policy(roots=(root,)), path.format(root=root), root) == root / found


async def test_a_root_that_is_a_link_means_what_it_led_to(root: Path, tmp_path: Path) -> None:
    """S05: moving the root's link later does not move the root."""
    link = tmp_path / "project"
    link.symlink_to(root)
    policy = Policy(roots=(link,))
    assert await permit(policy, "sub/x", link) == root / "sub/x"
    link.unlink()
    link.symlink_to(tmp_path / "outside")
    with pytest.raises(Denied, match="outside the directories"):
        await permit(policy, "x", link)


async def test_what_is_readable_is_not_writable(root: Path, tmp_path: Path) -> None:
    policy = Policy(roots=(root,), readable=(tmp_path / "outside",))
    secret = str(tmp_path / "outside/secret")
    assert await permit(policy, secret, root, tool="read", writing=False) == Path(secret).resolve()
    with pytest.raises(Denied, match="outside the directories"):
        await permit(policy, secret, root)


async def test_without_a_root_everything_is_allowed_and_that_is_said(root: Path) -> None:
    """S13: the same checks run, and the state is visible."""
    assert Policy().describe().startswith("no root set")
    assert await permit(Policy(), "link/new.txt", root) == root.parents[1] / "outside/new.txt"
    with pytest.raises(BadArguments, match="NUL"):
        await permit(Policy(), "a\0b", root)
    with pytest.raises(BadArguments):
        await permit(Policy(), "", root)
    described = Policy(roots=(root,), rules=(Rule("bash", Decision.ASK),)).describe()
    assert f"roots: {root}" in described
    assert "ask: bash" in described
    assert "nobody to ask" in described
    assert "not confined" in described


async def test_home_is_only_the_users_own(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(root / "home"))
    assert await permit(Policy(), "~/x", root) == root / "home/x"
    assert await permit(Policy(), "~//etc", root) == root / "home/etc"
    assert await permit(Policy(), "~", root) == root / "home"
    assert await permit(Policy(), "~other/x", root) == root / "~other/x"


async def test_the_first_rule_that_fits_decides(root: Path) -> None:
    policy = Policy(
        rules=(
            Rule("read", Decision.ALLOW, root / "sub"),
            Rule("read", Decision.DENY),
            Rule("*", Decision.DENY, root / "sub"),
        )
    )
    assert policy.resolve("sub/x", root, "read", False)[1] is Decision.ALLOW
    assert policy.resolve("x", root, "read", False)[1] is Decision.DENY
    assert policy.resolve("inner/x", root, "write", True)[1] is Decision.DENY
    assert policy.resolve("x", root, "write", True)[1] is Decision.ALLOW
    with pytest.raises(Denied, match="does not allow `read`"):
        await permit(policy, "x", root, tool="read")


@pytest.mark.parametrize(
    "command",
    ["$(rm x)", "/bin/rm x", "'r'm x", "true\nrm x", "r*m x", "cat <(rm x)"],
)
@pytest.mark.parametrize("decision", [Decision.ALLOW, Decision.DENY])
async def test_a_command_is_judged_by_its_tool_never_by_its_words(
    root: Path, command: str, decision: Decision
) -> None:
    """S06: there is no command blocklist to get around."""
    policy = Policy(rules=(Rule("bash", decision),))

    async def ask() -> Path:
        return await policy.permit(".", cwd=root, tool="bash", writing=True, session=SESSION, what=command)

    if decision is Decision.ALLOW:
        assert await ask() == root
    else:
        with pytest.raises(Denied):
            await ask()


async def test_a_question_that_nobody_can_answer_is_a_refusal_with_a_hint(root: Path) -> None:
    with pytest.raises(Denied, match="nobody is there") as denied:
        await permit(Policy(rules=(Rule("*", Decision.ASK),)), "x", root)
    assert denied.value.hint


async def test_the_owner_is_asked_with_what_will_happen(root: Path) -> None:
    asked: list[Approval] = []

    async def approve(approval: Approval) -> bool:
        asked.append(approval)
        return approval.what == "make"

    policy = Policy(rules=(Rule("bash", Decision.ASK),), approve=approve)

    async def run(what: str) -> Path:
        return await policy.permit(".", cwd=root, tool="bash", writing=True, session=SESSION, what=what)

    assert await run("make") == root
    with pytest.raises(Denied, match="was asked"):
        await run("x" * 5000)
    assert [len(approval.what) for approval in asked] == [4, 2000]
    assert asked[0].path == root
    assert asked[0].id != asked[1].id


WINDOWS = [
    ("C:\\", "C:\\x", True),
    ("C:\\", "c:\\x\\y", True),
    ("c:\\Work", "C:\\work\\A", True),
    ("C:\\work", "C:\\work", True),
    ("C:\\work\\", "C:/work/a", True),
    ("C:\\work", "C:\\work.\\a", True),
    ("C:\\work", "C:\\workshop", False),
    ("C:\\work", "D:\\work\\a", False),
    ("C:\\work", "C:\\work\\..\\a", False),
    ("C:\\work", "C:work\\a", False),
    ("C:\\work", "\\work\\a", False),
    ("C:\\work", "work\\a", False),
    ("\\\\host\\share", "\\\\host\\share\\dir", True),
    ("\\\\host\\share\\", "\\\\HOST\\Share\\dir\\x", True),
    ("\\\\host\\share\\dir", "\\\\host\\share\\dir\\x", True),
    ("\\\\host\\share\\dir", "\\\\host\\share\\directory", False),
    ("\\\\host\\share", "\\\\host\\share2\\dir", False),
    ("\\\\host\\share", "\\\\other\\share\\dir", False),
    ("\\\\host\\share", "\\host\\share\\dir", False),
    ("C:\\work", "\\\\?\\C:\\work\\a", True),
    ("\\\\?\\C:\\work", "C:\\work\\a", True),
    ("\\\\host\\share", "\\\\?\\UNC\\host\\share\\dir", True),
    ("\\\\?\\unc\\host\\share", "\\\\host\\share\\dir", True),
    ("C:\\work", "\\\\?\\D:\\work\\a", False),
]


@pytest.mark.parametrize(("root", "path", "expected"), WINDOWS)
def test_windows_paths_are_compared_by_components_on_any_system(root: str, path: str, expected: bool) -> None:
    """B79: UNC roots, drive letters of either case, the long form."""
    assert inside(PureWindowsPath(root), PureWindowsPath(path)) is expected


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [
        ("/a/b", "/a/b", True),
        ("/a/b", "/a/b/c", True),
        ("/", "/a", True),
        ("/a/b", "/a/b_evil/x", False),
        ("/a/b", "/a/b/../c", False),
        ("/a/b", "a/b/c", False),
        ("/a/b", "/A/B/c", False),
        ("/a/b", "//a/b/c", True),
        ("a", "a/b", False),
    ],
)
def test_posix_paths_are_compared_by_components(root: str, path: str, expected: bool) -> None:
    """S04: no comparison of prefixes."""
    assert inside(PurePosixPath(root), PurePosixPath(path)) is expected


@given(st.lists(st.sampled_from(["a", "b", "ab", "a b"])), st.lists(st.sampled_from(["a", "b"])))
def test_inside_is_a_prefix_of_components(outer: list[str], more: list[str]) -> None:
    flavours: list[tuple[Callable[..., PurePath], str]] = [(PurePosixPath, "/"), (PureWindowsPath, "C:\\")]
    for flavour, anchor in flavours:
        root = flavour(anchor, *outer)
        assert inside(root, root.joinpath(*more))
        if more:
            assert not inside(root.joinpath(*more), root)


def approval(
    tool: str = "bash", conversation: str | None = "c1", directory: str = "/p", *, writing: bool = True
) -> Approval:
    return Approval(
        tool=tool,
        path=Path(directory),
        writing=writing,
        what="make",
        directory=Path(directory),
        session=SESSION,
        conversation=ConversationId(conversation) if conversation else None,
    )


async def test_the_first_answer_wins_and_the_second_learns_of_it() -> None:
    asked: list[Approval] = []
    approvals = Approvals(asked.append)
    question = approval()
    results: list[bool] = []

    async def ask() -> None:
        results.append(await approvals.ask(question))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert approvals.pending == (question,) == tuple(asked)
            first = Answer(True, by="terminal")
            assert approvals.answer(question.id, first) == first
            assert approvals.answer(question.id, Answer(False, by="dashboard")) == first
    assert results == [True]
    assert approvals.pending == ()


@pytest.mark.parametrize(
    ("scope", "covered"),
    [
        (Scope.ONCE, []),
        (Scope.CONVERSATION, ["same", "elsewhere"]),
        (Scope.DIRECTORY, ["same", "other chat", "no chat"]),
    ],
)
@pytest.mark.parametrize("allowed", [True, False])
async def test_an_answer_reaches_as_far_as_its_scope(scope: Scope, covered: list[str], allowed: bool) -> None:
    approvals = Approvals()
    others = {
        "same": approval(),
        "elsewhere": approval(directory="/q"),
        "other chat": approval(conversation="c2"),
        "no chat": approval(conversation=None),
        "other tool": approval(tool="write"),
    }
    question = approval()
    settled: list[str] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:

            async def ask(name: str, each: Approval) -> None:
                assert await approvals.ask(each) is allowed
                settled.append(name)

            tasks.start_soon(ask, "question", question)
            for name, each in others.items():
                tasks.start_soon(ask, name, each)
            await anyio.wait_all_tasks_blocked()
            approvals.answer(question.id, Answer(allowed, scope))
            await anyio.wait_all_tasks_blocked()
            assert sorted(settled) == sorted(["question", *covered])
            for name, each in others.items():  # a later question is answered the same way, at once
                if name in covered:
                    again = approval(each.tool, each.conversation, str(each.directory))
                    assert await approvals.ask(again) is allowed
            tasks.cancel_scope.cancel()
    assert approvals.pending == ()


@pytest.mark.parametrize("scope", [Scope.CONVERSATION, Scope.DIRECTORY])
async def test_leave_to_read_is_none_to_write(scope: Scope) -> None:
    asked: list[Approval] = []
    approvals = Approvals(asked.append)
    reading = approval("transfer", writing=False)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(approvals.ask, reading)
            await anyio.wait_all_tasks_blocked()
            approvals.answer(reading.id, Answer(True, scope))
            assert await approvals.ask(approval("transfer", writing=False))
            writing = approval("transfer")
            tasks.start_soon(approvals.ask, writing)
            await anyio.wait_all_tasks_blocked()
            assert approvals.pending == (writing,)
            tasks.cancel_scope.cancel()


async def test_a_question_whose_call_ended_is_closed_and_silence_is_no_answer() -> None:
    approvals = Approvals()
    question = approval()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(approvals.ask, question)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    with pytest.raises(RequestClosed):
        approvals.answer(question.id, Answer(True))


async def test_questions_and_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_module, "MAX_APPROVALS", 2)
    monkeypatch.setattr(policy_module, "MAX_REMEMBERED", 2)
    approvals = Approvals()
    with anyio.fail_after(5):
        for number in range(4):
            async with anyio.create_task_group() as tasks:
                question = approval(directory=f"/{number}")
                tasks.start_soon(approvals.ask, question)
                await anyio.wait_all_tasks_blocked()
                approvals.answer(question.id, Answer(True, Scope.DIRECTORY))
        assert await approvals.ask(approval(directory="/3"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(approvals.ask, approval(directory="/0"))
            tasks.start_soon(approvals.ask, approval(directory="/1"))
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(Overloaded):
                await approvals.ask(approval(directory="/9"))
            tasks.cancel_scope.cancel()
