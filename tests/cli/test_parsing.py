"""Help, versions, completion, bad input: what needs no store."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from headrace.backends.refusal import NotLetIn
from headrace.cli.__main__ import cli
from headrace.cli.problems import Problem, explain, report
from headrace.errors import (
    ConfigError,
    Corrupt,
    JobNotFound,
    QueueFull,
    SchemaMismatch,
    StoreFull,
    Unavailable,
    UnknownTask,
)
from headrace.text import without_secrets
from tests.cli.conftest import Run

COMMANDS = list(cli.list_commands(None))  # type: ignore[arg-type]
SCHEDULE = ("list", "show", "next", "run", "pause", "resume", "backfill", "delete")
GROUPS = {
    name: list(found.commands)
    for name in COMMANDS
    if isinstance(found := cli.get_command(None, name), click.Group)  # type: ignore[arg-type]
}
LEAVES = [
    *((name,) for name in COMMANDS if name not in GROUPS),
    *((group, verb) for group, verbs in GROUPS.items() for verb in verbs),
]
READS = [
    ("job", "list"), ("job", "show"), ("job", "why"), ("queue", "list"), ("queue", "limit"), ("tenant", "list"),
    ("tenant", "limit"), ("dead", "list"), ("dead", "show"), ("health",), ("migrate", "status"), ("migrate", "plan"),
    *(("schedule", verb) for verb in SCHEDULE),
]  # fmt: skip


@pytest.mark.parametrize("command", [(), *((group,) for group in GROUPS), *LEAVES], ids=" ".join)
def test_help_tells_what_it_does(run: Run, command: tuple[str, ...]) -> None:
    text = run(*command, "--help").stdout
    assert text.startswith(f"Usage: headrace {' '.join(command)}".rstrip())
    if command in LEAVES:
        assert f"HEADRACE_CLI_{'_'.join(command).upper()}_SOME_OPTION" in " ".join(text.split())


@pytest.mark.parametrize("command", [*READS, ("doctor",), ("bench",), ("enqueue",)], ids=" ".join)
def test_whatever_reads_can_answer_in_json(run: Run, command: tuple[str, ...]) -> None:
    assert "--json" in run(*command, "--help").stdout


def test_help_and_version_import_no_command() -> None:
    script = (
        "import sys; sys.argv = ['headrace', '--help']\n"
        "from headrace.cli.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = [m for m in sys.modules if m.startswith(('rich', 'apsw', 'watchfiles', 'headrace.cli.worker'))]\n"
        "print('heavy:', heavy)"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "heavy: []" in output


def test_version(run: Run) -> None:
    assert run("--version").stdout.startswith("headrace 0.")


@pytest.mark.parametrize("module", ["headrace", "headrace.cli"])
def test_python_runs_it_as_a_module(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("headrace 0.")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run: Run, shell: str) -> None:
    assert "_HEADRACE_COMPLETE" in run("completion", shell).stdout


def test_completion_completes(project: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "headrace.cli"],
        env={"_HEADRACE_COMPLETE": "bash_complete", "COMP_WORDS": "headrace que", "COMP_CWORD": "1", "PATH": "/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "queue" in completed.stdout


def test_a_near_miss_is_guessed(run: Run) -> None:
    assert "Did you mean 'worker'?" in run("workr", code=2).stderr


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nowhere", ["there is no module 'nowhere'", "neither below"]),
        ("nowhere.py", ["there is no file nowhere.py"]),
        ("not/a/module", ["neither a module nor a .py file", "not/a/module.py"]),
        ("jobs:other", ["has no app or queue 'other'; it has: app"]),
        ("json", ["json has nothing under the name 'app'", "headrace.App("]),
        ("json:loads", ["function, which is neither an App nor a Queue"]),
        ("broken", ["NameError", "line 2", "--debug"]),
        ("broken_syntax.py", ["SyntaxError", "line 1"]),
        ("queue.py", ["'queue' is another module"]),
    ],
)
def test_an_app_that_cannot_be_loaded(run: Run, project: Path, spec: str, words: list[str]) -> None:
    (project / "broken.py").write_text("import os\nundefined\n")
    (project / "broken_syntax.py").write_text("def (:\n")
    (project / "queue.py").write_text("")
    error = run("job", "list", "--app", spec, code=2).stderr
    assert error.startswith("error: ")
    assert "Traceback" not in error
    for word in words:
        assert word in error


def test_debug_shows_the_traceback(run: Run, project: Path) -> None:
    (project / "broken.py").write_text("import os\nundefined\n")
    for command in (("--debug", "job", "list"), ("job", "list", "--debug")):
        assert "Traceback" in run(*command, "--app", "broken", code=2).stderr
    assert "Traceback" in run("job", "list", "--app", "broken", code=2, env={"HEADRACE_CLI_DEBUG": "1"}).stderr


def test_a_file_in_a_package_has_the_name_that_imports_give_it(run: Run, project: Path) -> None:
    package = project / "src" / "shop"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "work.py").write_text(
        "from headrace import App\napp = App('memory://')\n@app.task\ndef pack() -> None: ...\n"
    )
    assert "shop.work.pack" in run("doctor", "--app", "src/shop/work.py").stdout


def test_url_and_app_together_are_refused(run: Run) -> None:
    assert "got both" in run("job", "list", "--url", "memory://", "--app", "jobs", code=2).stderr


def test_a_url_on_the_line_wins_over_an_app_from_the_environment(run: Run) -> None:
    run("job", "list", "--url", "memory://", env={"HEADRACE_CLI_APP": "nowhere"})


def test_options_and_settings_have_their_own_variables(run: Run) -> None:
    env = {"HEADRACE_CLI_JOB_LIST_LIMIT": "nought", "HEADRACE_URL": "memory://"}
    assert "'--limit'" in run("job", "list", env=env, code=2).stderr
    env = {"HEADRACE_CLI_JOB_LIST_LIMIT": "7", "HEADRACE_CLI_JOB_LIST_JSON": "1", "HEADRACE_URL": "memory://"}
    assert run("job", "list", env=env).stdout.split() == ["{", '"jobs":', "[],", '"more":', "false", "}"]


def test_an_unknown_setting_is_told(run: Run) -> None:
    error = run("job", "list", env={"HEADRACE_WROKER__LEASE": "1s", "HEADRACE_URL": "memory://"}, code=2).stderr
    assert "the environment variable HEADRACE_WROKER__LEASE is not a setting" in error
    assert "HEADRACE_*" in error


@pytest.mark.parametrize("duration", ["soon", "3 fortnights", "-5s", ""])
def test_a_bad_duration(run: Run, duration: str) -> None:
    assert "'30s'" in run("job", "list", "--older-than", duration, "--url", "memory://", code=2).stderr


def test_secrets_are_not_told(run: Run) -> None:
    error = run("job", "list", "--url", "mysql://me:hunter2@db/jobs?token=abc", code=2).stderr
    assert "hunter2" not in error
    assert "abc" not in error
    assert "://***@db" in error


@pytest.mark.parametrize("password", ["hun/ter2", "hun@ter2", "hun?ter2", "hun:ter2"])
def test_it_is_known_where_a_password_ends(password: str) -> None:
    told = without_secrets(f"at 'postgres://me:{password}@db/jobs', it said")
    assert told == "at 'postgres://***@db/jobs', it said"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("redis+sentinel://a,b?master=jobs&sentinel_password=hunter2", "redis+sentinel://a,b?master=jobs&sentinel_password=***"),
        ("'redis+sentinel://a?sentinel_password=hunter2&master=x'.", "'redis+sentinel://a?sentinel_password=***&master=x'."),
        ("redis+sentinel://a?Sentinel_P%61ssword=hunter2", "redis+sentinel://a?Sentinel_P%61ssword=***"),
        ("redis+sentinel://a?sentinel_password=hun'ter2", "redis+sentinel://a?sentinel_password=***"),
        ("rediss://db?cert=/a.pem&key=/a.key", "rediss://db?cert=/a.pem&key=***"),
        ("host=db password=hunter2 user=me", "host=db password=*** user=me"),
        ("connect(user='me',password='hunter2')", "connect(user='me',password=***')"),
        ("one redis://a:hunter2@h and another redis://:hunter2@h", "one redis://***@h and another redis://***@h"),
    ],
)  # fmt: skip
def test_secrets_are_left_out_wherever_they_stand(text: str, told: str) -> None:
    assert without_secrets(text) == told


@pytest.mark.parametrize(
    "text", ["sqlite:///a/b@c.db and 12:30@noon", "key=order:7 max_tokens=100", "redis://db/0?prefix=x"]
)
def test_other_text_is_left_alone(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize("text", ["x" * 100_000 + "=", "a=b" * 30_000, "://" * 30_000, "token=" * 20_000 + "@"])
def test_a_long_text_takes_no_long_time(text: str) -> None:
    before = time.process_time()
    without_secrets(text)
    assert time.process_time() - before < 5


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unavailable(), 75), (StoreFull(), 75), (NotLetIn(), 75), (ConfigError(), 2), (Corrupt(), 1),
        (UnknownTask(), 3), (JobNotFound(), 3), (QueueFull(), 75),
    ],
)  # fmt: skip
def test_exit_codes(error: Exception, code: int) -> None:
    problem = explain(error)
    assert isinstance(problem, Problem)
    assert problem.code == code


@pytest.mark.parametrize("url", ["redis://db/0", "valkeys+cluster://a,b", "postgresql://***@db/shop"])
def test_hints_fit_the_kind_of_the_store(url: str) -> None:
    away = explain(Unavailable(f"{url} cannot serve just now: Connection refused"))
    assert "the server is not running" in away.cause
    assert "directory" not in away.cause
    assert "its directory is not writable" in explain(Unavailable("/srv/jobs.db is locked")).cause


def test_a_message_that_says_all_about_a_server_gets_no_guess_beside_it() -> None:
    told = "redis://db/0: expected maxmemory-policy noeviction, got allkeys-lru"
    assert (explain(ConfigError(told)).cause, explain(NotLetIn(told)).cause) == ("", "")
    assert "HEADRACE_*" in explain(ConfigError("worker.lease: expected a duration")).cause


def test_a_full_memory_is_no_full_disk() -> None:
    memory, disk = explain(StoreFull("redis://db/0 is full: …")), explain(StoreFull("/srv/jobs.db has no room left"))
    assert ("memory" in memory.cause, disk.cause) == (True, "the disk is full")
    for word in ("HEADRACE_RETENTION__COMPLETED__COUNT", "headrace dead purge", "maxmemory"):
        assert word in memory.run


def test_a_store_that_does_not_fit_is_not_sent_to_a_command_that_is_not_for_it() -> None:
    assert "migrate" not in explain(SchemaMismatch("redis://db/0: the store has the layout 2")).run
    assert "prefix" in explain(SchemaMismatch("redis://db/0: the store has the layout 2")).run
    assert "headrace migrate status" in explain(SchemaMismatch("postgresql://db/shop lacks …")).run


@pytest.mark.parametrize(
    "group",
    [
        ExceptionGroup("tasks", [Unavailable("it is away")]),
        ExceptionGroup("tasks", [ExceptionGroup("more", [Unavailable("it is away")])]),
        ExceptionGroup("tasks", [Unavailable("it is away"), Unavailable("it is away")]),
    ],
    ids=repr,
)
def test_an_error_in_a_group_is_told_like_the_error(group: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """What runs side by side in a worker fails as a group."""
    assert report(Unavailable("it is away"), debug=False) == 75
    alone = capsys.readouterr().err
    assert report(group, debug=False) == 75
    assert capsys.readouterr().err == alone
    assert [line.partition(":")[0] for line in alone.splitlines()] == ["error", "cause", "run"]


def test_a_group_of_different_errors_is_not_hidden() -> None:
    group = ExceptionGroup("tasks", [Unavailable(), ValueError("a mistake of ours")])
    with pytest.raises(ExceptionGroup) as caught:
        report(group, debug=False)
    assert caught.value is group
