"""The tenants of a queue from the shell."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from headrace import App, NewJob
from headrace.cli.tenant_output import print_tenants
from headrace.cli.times import now
from headrace.limits.policies import PolicyInfo, TenantInfo
from headrace.seam.records import Beat, Claim
from tests.cli.conftest import Run

RunJson = Callable[..., Any]
Shop = Callable[..., Any]
APP = ("--app", "shop")
LEASE = 30_000_000


@pytest.fixture(autouse=True)
def in_shop(shop: Shop) -> None:
    """Where the store is."""


@pytest.fixture
def enqueue(shop: Shop) -> Callable[..., None]:
    """One job for each of these tenants."""

    async def store(app: App, tenants: tuple[str, ...]) -> None:
        await app.enqueue_many(NewJob(task="send", queue="mail", tenant=tenant, args={}) for tenant in tenants)

    return lambda *tenants: shop(lambda app: store(app, tenants))


def told(text: str) -> str:
    """What is said, but for that the store is in memory."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("memory://"))


def rows(run: Run, *more: str) -> list[list[str]]:
    """The table, cell by cell."""
    return [line.split() for line in run("tenant", "list", "mail", *APP, *more).stdout.splitlines()]


# -- list


def test_a_list_tells_who_waits_who_runs_and_what_holds(run: Run, shop: Shop, enqueue: Callable[..., None]) -> None:
    async def claim(app: App) -> None:
        backend = await app.client.backend()
        await backend.renew(Beat("h", "worker-1", ("mail",), LEASE))
        await backend.claim(Claim("h", ("mail",), 1, LEASE))

    run("queue", "limit", "mail", "--tenant-running", 5, *APP)
    enqueue("acme", "acme")
    shop(claim)
    enqueue("bolt", "")
    run("tenant", "limit", "mail", "bolt", "--running", 1, *APP)
    run("tenant", "pause", "mail", "", *APP)
    run("tenant", "pause", "mail", "idle", "--lasts", "1h", *APP)
    heads, nobody, acme, bolt, idle = rows(run)
    assert heads == ["TENANT", "WAITING", "RUNNING", "LIMIT", "RATE", "PAUSED", "WORKERS"]
    assert nobody == ["''", "1", "0", "5", "until", "it", "is", "resumed"]
    assert acme == ["acme", "1", "1", "5", "worker-1"]
    assert bolt == ["bolt", "1", "0", "1", "(its", "own)"]
    assert idle[:4] == ["idle", "0", "0", "5"]
    assert re.fullmatch(r"ends in (1h|59m\d+s)", " ".join(idle[4:]))


def test_a_list_for_programs(run: Run, run_json: RunJson, enqueue: Callable[..., None]) -> None:
    run("queue", "limit", "mail", "--tenant-rate", "1/m", *APP)
    enqueue("acme")
    assert run_json("tenant", "list", "mail", *APP) == {
        "queue": "mail",
        "fair": True,
        "tenant_running": None,
        "tenant_rate": "1/m",
        "tenants": [
            {
                "queue": "mail",
                "tenant": "acme",
                "waiting": 1,
                "running": 0,
                "limit": None,
                "rate": None,
                "paused": False,
                "paused_until": None,
                "opens_at": None,
                "workers": [],
            }
        ],
        "more": False,
    }


def test_a_long_list_comes_page_by_page(run: Run, run_json: RunJson) -> None:
    for name in ("a", "b c", "d"):
        run("tenant", "limit", "mail", name, "--running", 1, *APP)
    first = run("tenant", "list", "mail", "--limit", 2, *APP)
    assert "there are more: continue with --after 'b c', or raise --limit" in first.stderr
    rest = run_json("tenant", "list", "mail", "--after", "b c", *APP)
    assert ([one["tenant"] for one in rest["tenants"]], rest["more"]) == (["d"], False)


def test_a_queue_without_limits_does_not_know_its_tenants(
    run: Run, run_json: RunJson, enqueue: Callable[..., None]
) -> None:
    enqueue("acme")
    listed = run("tenant", "list", "mail", *APP)
    assert listed.stdout == ""
    assert "queue 'mail' has no rules" in listed.stderr
    assert "headrace queue limit mail --tenant-running 10" in listed.stderr
    data = run_json("tenant", "list", "mail", *APP)
    assert (data["fair"], data["tenants"]) == (False, [])
    assert "Known queues: mail" in run("tenant", "list", "male", *APP).stderr
    run("queue", "limit", "other", "--running", 1, *APP)
    assert "no tenant of queue 'other' has jobs" in run("tenant", "list", "other", *APP).stderr


def test_names_cannot_reach_the_terminal(run: Run) -> None:
    run("tenant", "limit", "mail", "a\x1b[2J", "--running", 1, *APP)
    assert "a\\x1b[2J" in run("tenant", "list", "mail", *APP).stdout


def test_what_is_too_much_for_a_line_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    at = now()
    tenant = TenantInfo(
        queue="mail",
        tenant="acme",
        waiting=10_000,
        running=5,
        limit=None,
        rate="1/m",
        paused=False,
        paused_until=None,
        opens_at=at + timedelta(minutes=1),
        workers=["a", "b", "c", "d", "e"],
    )
    print_tenants([tenant], empty_policy(), 10_000, at)
    output = capsys.readouterr()
    assert "1/m (its own), opens in 1m" in output.out
    assert output.out.endswith("a, b, c and 2 more\n")
    assert output.err == "waiting jobs are counted up to 10,000\n"


def empty_policy() -> PolicyInfo:
    return PolicyInfo(
        queue="mail",
        running=None,
        rate=None,
        tenant_running=None,
        tenant_rate=None,
        task_rates={},
        tenant_workers=None,
        tenant_batch=10,
        ageing=None,
        group_running=1,
        depth=None,
        fair=True,
        paused_tasks={},
    )


# -- limit


def fields(text: str) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in text.splitlines())


def test_limits_are_changed_one_by_one_and_shown(run: Run, run_json: RunJson) -> None:
    run("queue", "limit", "mail", "--tenant-running", 5, *APP)
    limit = ("tenant", "limit", "mail", "acme", *APP)
    assert fields(run(*limit, "--rate", "2/3m, burst 4").stdout) == {
        "queue": "mail",
        "tenant": "acme",
        "running": "5",
        "rate": "4/6m (its own)",
    }
    shown = fields(run(*limit, "--running", 20).stdout)
    assert (shown["running"], shown["rate"]) == ("20 (its own)", "4/6m (its own)")
    assert run_json(*limit, "--running", "none") == {
        "queue": "mail",
        "tenant": "acme",
        "running": None,
        "rate": "4/6m",
        "tenant_running": 5,
        "tenant_rate": None,
    }
    shown = fields(run(*limit, "--none").stdout)
    assert (shown["running"], shown["rate"]) == ("5", "any")
    assert rows(run) == []


def test_jobs_without_a_tenant_have_one_that_is_empty(run: Run, run_json: RunJson) -> None:
    assert "tenant   ''" in run("tenant", "limit", "mail", "", "--running", 1, *APP).stdout
    [tenant] = run_json("tenant", "list", "mail", *APP)["tenants"]
    assert (tenant["tenant"], tenant["limit"]) == ("", 1)


def test_a_queue_that_nobody_uses_yet_may_be_a_typing_error(run: Run, enqueue: Callable[..., None]) -> None:
    enqueue("acme")
    for command in (("limit", "male", "acme", "--running", 1), ("pause", "male", "acme"), ("resume", "male", "acme")):
        assert "Known queues: mail" in run("tenant", *command, *APP).stderr
    assert told(run("tenant", "limit", "mail", "acme", "--running", 1, *APP).stderr) == ""
    assert told(run("tenant", "pause", "mail", "acme", *APP).stderr) == ""
    assert "tenant 'acne' has no jobs in queue 'mail' now" in run("tenant", "pause", "mail", "acne", *APP).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["expected --running, --rate, or --none", "headrace tenant list"]),
        (("--none", "--running", "1"), ["expected --none or limits, got both"]),
        (("--running", "0"), ["'--running'", "at least 1", "got 0"]),
        (("--running", "many"), ["'--running'", "got 'many'"]),
        (("--rate", "fast"), ["'--rate'", "'100/s'", "got 'fast'"]),
        (("--rate", "1/2d"), ["'--rate'", "at least one job a day"]),
    ],
)
def test_limits_that_cannot_be(run: Run, arguments: tuple[str, ...], words: list[str]) -> None:
    error = run("tenant", "limit", "mail", "acme", *arguments, *APP, code=2).stderr
    assert all(word in error for word in words), error


# -- pause and resume


def test_a_tenant_is_paused_for_a_while_or_for_good_and_resumed(run: Run, run_json: RunJson) -> None:
    def paused() -> tuple[bool, str | None]:
        [tenant] = run_json("tenant", "list", "mail", *APP)["tenants"]
        return tenant["paused"], tenant["paused_until"]

    before = now()
    output = run("tenant", "pause", "mail", "acme", "--lasts", "90m", *APP).stdout
    assert output == "acme  paused in queue mail for 1h30m\n"
    is_paused, until = paused()
    assert is_paused
    assert until is not None
    ends = datetime.fromisoformat(until) - timedelta(minutes=90)
    assert before <= ends <= now()
    output = run("tenant", "pause", "mail", "acme", *APP).stdout
    assert output == "acme  paused in queue mail until it is resumed\n"
    assert paused() == (True, None)
    assert run("tenant", "resume", "mail", "acme", *APP).stdout == "acme  resumed in queue mail\n"
    assert rows(run) == []


def test_a_length_that_is_none(run: Run) -> None:
    assert "'--lasts'" in run("tenant", "pause", "mail", "acme", "--lasts", "soon", *APP, code=2).stderr


def test_a_tenant_is_paused_in_all_queues(run: Run, run_json: RunJson) -> None:
    for queue in ("mail", "bills"):
        run("enqueue", "send", *APP, "--queue", queue, "--tenant", "acme")
    output = run("tenant", "pause", "--all-queues", "acme", "--lasts", "1h", *APP)
    assert output.stdout == "acme  paused in all queues for 1h\n"
    assert "2 queues: bills, mail; and queues that workers serve who start later" in output.stderr
    assert [
        one["paused"] for queue in ("mail", "bills") for one in run_json("tenant", "list", queue, *APP)["tenants"]
    ] == [
        True,
        True,
    ]
    output = run("tenant", "resume", "--all-queues", "acme", *APP)
    assert output.stdout == "acme  resumed in all queues\n"
    assert "2 queues: bills, mail" in output.stderr
    assert "it was paused in none" in run("tenant", "resume", "acme", "--all-queues", *APP).stderr
    for command in (("pause", "acme"), ("resume", "acme")):
        assert (
            "QUEUE and TENANT, or TENANT with --all-queues, got 1 name" in run("tenant", *command, *APP, code=2).stderr
        )
    assert (
        "expected TENANT with --all-queues, got 2 names"
        in run("tenant", "pause", "mail", "acme", "--all-queues", *APP, code=2).stderr
    )
