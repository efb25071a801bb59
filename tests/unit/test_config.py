"""Settings: where they come from, and which source wins."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace import Settings
from headrace.core import config
from headrace.core import settings_options as so
from headrace.core.config import Keep, WorkerSettings
from headrace.core.durations import micros
from headrace.errors import ConfigError


def load(overrides: Any = None, env: Any = None, toml: Any = None) -> Settings:
    return Settings.load(overrides, env=env or {}, toml=toml or {})


def test_defaults() -> None:
    """002-35 and the architecture's §10."""
    settings = load()
    assert (settings.url, settings.result_ttl, settings.patience) == ("sqlite:///headrace.db", "1h", "30s")
    assert (settings.worker.concurrency, settings.worker.lease, settings.worker.grace) == (10, "30s", "10s")
    assert (settings.payloads.max_size, settings.payloads.compress_over) == (16 * 1024 * 1024, 1_024)
    assert settings.retention.failed.age == "7d"
    assert settings == Settings()


def test_overrides_win_over_the_environment_and_that_over_files() -> None:
    toml = {"url": "memory://a", "worker": {"concurrency": 1, "prefetch": 1, "lease": "1s"}}
    env = {"HEADRACE_URL": "memory://b", "HEADRACE_WORKER__CONCURRENCY": "2", "HEADRACE_WORKER__PREFETCH": "2"}
    settings = load({"worker": {"concurrency": 3}}, env, toml)
    assert (settings.url, settings.worker.concurrency, settings.worker.prefetch) == ("memory://b", 3, 2)
    assert settings.worker.lease == "1s"


def test_numbers_in_the_environment_are_numbers() -> None:
    env = {
        "HEADRACE_WORKER__CONCURRENCY": "4",
        "HEADRACE_PAYLOADS__MAX_SIZE": "1000",
        "HEADRACE_RETENTION__FAILED__COUNT": "7",
    }
    settings = load(env=env)
    assert (settings.worker.concurrency, settings.payloads.max_size, settings.retention.failed.count) == (4, 1_000, 7)


def test_lengths_in_the_environment_may_be_plain_seconds() -> None:
    """As everywhere else: a number is seconds."""
    for text in ("30", "0.5", "30s"):
        assert micros(load(env={"HEADRACE_WORKER__LEASE": text}).worker.lease) in (30_000_000, 500_000)


def test_nothing_can_be_switched_off_in_the_environment() -> None:
    assert load(env={"HEADRACE_PAYLOADS__COMPRESS_OVER": "null"}).payloads.compress_over is None


def test_other_variables_are_not_ours() -> None:
    assert load(env={"HEADRACEX": "1", "PATH": "/", "headrace_url": "x"}) == Settings()


def test_lengths_in_any_form() -> None:
    for lease in (30, 30.0, "30s", timedelta(seconds=30)):
        assert load({"worker": {"lease": lease}}).worker.lease in (30, "30s")


def test_parts_as_objects() -> None:
    settings = load({"worker": WorkerSettings(concurrency=3), "retention": {"failed": Keep(count=1)}})
    assert (settings.worker.concurrency, settings.retention.failed.count) == (3, 1)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.load(env={}) == Settings()
    (tmp_path / "pyproject.toml").write_text('[tool.headrace]\nurl = "memory://p"\n[tool.headrace.worker]\nlease = 7\n')
    assert (Settings.load(env={}).url, Settings.load(env={}).worker.lease) == ("memory://p", 7)
    (tmp_path / "headrace.toml").write_text('url = "memory://h"\n')
    settings = Settings.load(env={})
    assert (settings.url, settings.worker.lease) == ("memory://h", "30s")


def test_the_real_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_WORKER__CONCURRENCY", "7")
    assert Settings.load(toml={}).worker.concurrency == 7


def test_messages_lead_to_the_place() -> None:
    with pytest.raises(ConfigError, match=r"\$\.worker\.concurrency"):
        load({"worker": {"concurrency": "many"}})
    with pytest.raises(ConfigError, match=r"unknown setting 'bogus'; there are: url, .*, http, alerts$"):
        load({"bogus": 1})
    with pytest.raises(ConfigError, match="expected a whole number of at least 1, got 0"):
        load({"worker": {"concurrency": 0}})
    with pytest.raises(ConfigError, match=r"worker\.lease: expected a duration"):
        load({"worker": {"lease": "soon"}})
    with pytest.raises(ConfigError, match=r"planner\.ahead: expected at most 7d, got '8d'"):
        load({"planner": {"ahead": "8d"}})
    assert load({"planner": {"ahead": "7d"}}).planner.ahead == "7d"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"concurrency": 5}, """unknown setting 'concurrency'; did you mean worker={"concurrency": 5}?"""),
        ({"worker": {"concurency": 5}}, "unknown setting 'worker.concurency'; did you mean 'concurrency'?"),
        ({"wroker": {"concurrency": 5}}, "unknown setting 'wroker'; did you mean 'worker'?"),
        ({"retention": {"failed": {"agee": 5}}}, "unknown setting 'retention.failed.agee'; did you mean 'age'?"),
        ({"retention": {"age": "1d"}}, """or ticks={"age": '1d'}?"""),
    ],
)
def test_what_may_have_been_meant(given: dict[str, Any], said: str) -> None:
    for source in ("overrides", "toml"):
        with pytest.raises(ConfigError) as told:
            load(**{source: given})
        assert str(told.value).startswith("settings: ")
        assert str(told.value).endswith(said)


@pytest.mark.parametrize(
    "name",
    [
        "HEADRACE_CONCURRENCY",
        "HEADRACE_CONCURENCY",
        "HEADRACE_WORKER__CONCURENCY",
        "HEADRACE_WORKER_CONCURRENCY",
        "HEADRACE_WROKER__CONCURRENCY",
        "HEADRACE_PLANNER__CONCURRENCY",
    ],
)
def test_a_variable_that_was_meant_as_a_setting_is_refused(name: str) -> None:
    hint = r"did you mean HEADRACE_WORKER__CONCURRENCY\?"
    with pytest.raises(ConfigError, match=rf"^settings: the environment variable {name} is not a setting; {hint}$"):
        load(env={name: "5"})


def test_a_variable_of_a_part_is_meant_as_a_setting() -> None:
    with pytest.raises(ConfigError, match=r"HEADRACE_PLANNER__ZZZ is not a setting; there are: .*PLANNER__EVERY, "):
        load(env={"HEADRACE_PLANNER__ZZZ": "1"})
    with pytest.raises(ConfigError, match=r"HEADRACE_ULR .* did you mean HEADRACE_URL\?$"):
        load(env={"HEADRACE_ULR": "memory://"})


def test_what_kubernetes_puts_into_the_environment_is_no_setting(caplog: pytest.LogCaptureFixture) -> None:
    """A Service whose name begins with ``headrace`` gives such variables to every pod of its namespace."""
    env = {}
    for service in ("HEADRACE", "HEADRACE_DB", "HEADRACE_WORKER", "HEADRACE__URL", "HEADRACE_PLANNER__EVERY"):
        env |= {f"{service}_SERVICE_HOST": "10.0.0.1", f"{service}_SERVICE_PORT": "6379"}
        env |= {f"{service}_SERVICE_PORT_HTTP_ALT": "6379", f"{service}_PORT": "tcp://10.0.0.1:6379"}
        for number, protocol in ((6379, "TCP"), (53, "UDP"), (7, "SCTP")):
            link = f"{service}_PORT_{number}_{protocol}"
            env |= {link: "x", f"{link}_PROTO": "x", f"{link}_PORT": "x", f"{link}_ADDR": "x"}
    assert load(env=env) == Settings()
    assert not caplog.records


def test_a_variable_like_no_setting_is_told_once_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    env = {"HEADRACE_IMAGE_OF_OURS": "a", "HEADRACE_DB_URL": "b", "HEADRACE_RELEASE": "c", "HEADRACE__X": "d"}
    assert load(env=env) == load(env=env) == Settings()
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sorted(told) == [
        "the environment variable HEADRACE_DB_URL is not a setting and is ignored; did you mean HEADRACE_URL?",
        "the environment variable HEADRACE_IMAGE_OF_OURS is not a setting and is ignored",
        "the environment variable HEADRACE_RELEASE is not a setting and is ignored; "
        "did you mean HEADRACE_WORKER__LEASE?",
        "the environment variable HEADRACE__X is not a setting and is ignored",
    ]


def test_frozen() -> None:
    with pytest.raises(AttributeError):
        load().url = "x"  # type: ignore[misc]


def test_replacing_a_part_is_checked_too() -> None:
    settings = load()
    with pytest.raises(ConfigError):
        msgspec.structs.replace(settings, worker=msgspec.structs.replace(settings.worker, concurrency=0))


def test_sources_are_not_changed() -> None:
    toml: dict[str, Any] = {"worker": {"lease": "1s"}}
    load({"worker": {"lease": "2s"}}, {"HEADRACE_WORKER__PREFETCH": "1"}, toml)
    assert toml == {"worker": {"lease": "1s"}}


def test_a_table_that_holds_itself_is_refused() -> None:
    table: dict[str, object] = {}
    table["worker"] = table
    with pytest.raises(ConfigError, match="contains itself"):
        Settings.load(table, env={}, toml={})


def test_messages_about_settings_are_of_one_line() -> None:
    assert str(ConfigError("task a\nb\x1b[2J: expected an async function")) == (
        "task a\\nb\\x1b[2J: expected an async function"
    )


class TestOptions:
    """What type checkers know of settings is what there is."""

    @pytest.mark.parametrize(
        ("options", "settings"),
        [
            (so.WorkerOptions, config.WorkerSettings),
            (so.SealingOptions, config.SealingSettings),
            (so.CompressOptions, config.Compress),
            (so.PayloadOptions, config.PayloadSettings),
            (so.OffloadOptions, config.Offload),
            (so.ObjectOptions, config.ObjectSettings),
            (so.KeepOptions, config.Keep),
            (so.SafetyOptions, config.SafetySettings),
            (so.RetentionOptions, config.RetentionSettings),
            (so.VaultOptions, config.VaultSettings),
            (so.PlannerOptions, config.PlannerSettings),
            (so.HttpOptions, config.HttpSettings),
            (so.AlertOptions, config.AlertSettings),
        ],
    )
    def test_every_setting_is_typed(self, options: Any, settings: Any) -> None:
        """A setting that is added to ``config.py`` is added to ``settings_options.py``."""
        assert list(options.__annotations__) == list(settings.__struct_fields__)

    def test_at_the_top_too(self) -> None:
        assert ["url", *so.SettingsOptions.__annotations__] == list(Settings.__struct_fields__)
