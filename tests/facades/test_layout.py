"""Apps of more than one module: modules that are included, bundles, and what a worker without tasks says."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import App, Bundle, Job, Queue, never
from headrace.api.modules import modules_of
from headrace.errors import ConfigError, HeadraceError
from tests.facades.harness import Store, within

Package = Callable[..., None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Writes modules, by dotted name, that can be imported during the test."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(**modules: str) -> None:
        for name, code in modules.items():
            path = tmp_path / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            for parent in path.relative_to(tmp_path).parents:
                if parent != Path():
                    (tmp_path / parent / "__init__.py").touch()
            path.write_text(code)

    yield write
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("shop", "broken"):
            del sys.modules[name]


APP = "from headrace import App\napp = App('memory://', include=[{include}])\n"
TASK = "from shop.jobs import app\n\n@app.task(name='{name}', queue='{name}')\ndef run() -> str:\n    return '{name}'\n"


class TestInclude:
    async def test_a_worker_imports_the_modules(self, package: Package) -> None:
        """They import the app, so they cannot be imported where it is made."""
        package(shop__jobs=APP.format(include="'shop.emails'"), shop__emails=TASK.format(name="emails"))
        from shop.jobs import app  # type: ignore[import-not-found]

        assert app.tasks == {}
        async with app:
            handle = await app.enqueue_named("emails", {})
            await within(app.drain())
            assert await handle.result() == "emails"
        assert app.queues == ["emails"]

    def test_patterns(self, package: Package) -> None:
        package(
            shop__a__tasks="",
            shop__a__models="",
            shop__b__tasks="",
            shop__tasks="",
            shop__a__deep__tasks="",
            shop__c="",
        )
        assert modules_of("shop.tasks") == ["shop.tasks"]
        assert modules_of("shop.*.tasks") == ["shop.a.tasks", "shop.b.tasks"]
        assert set(modules_of("shop.**.tasks")) == {"shop.tasks", "shop.a.tasks", "shop.b.tasks", "shop.a.deep.tasks"}
        assert modules_of("shop.c*") == ["shop.c"]
        assert set(modules_of("shop.**")) >= {"shop.a", "shop.a.models", "shop.a.deep.tasks", "shop.c"}
        assert "shop.a.tasks" not in sys.modules

    @pytest.mark.parametrize(
        ("include", "told"),
        [
            ("shop.emials", r"there is no module 'shop\.emials' \(did you mean 'emails'\?\); looked in .*"),
            ("shp.emails", r"there is no module 'shp\.emails'; looked in .*"),
            ("shop.emails.*", r"shop\.emails is a module, not a package"),
            ("shop.*.nothing", r"no module matches 'shop\.\*\.nothing' below .*shop"),
        ],
    )
    def test_what_is_not_there(self, package: Package, include: str, told: str) -> None:
        package(shop__emails="")
        app = App("memory://", include=[include])
        for _ in range(2):  # nothing is forgotten by a first try
            with pytest.raises(ConfigError, match=told):
                app.load()

    @pytest.mark.parametrize("include", ["", "shop/emails.py", "shop.", "*", 7, None])
    def test_what_is_no_module(self, include: object) -> None:
        with pytest.raises(ConfigError, match="include: expected the dotted name of a module"):
            App("memory://", include=[include])  # type: ignore[list-item]

    def test_a_text_instead_of_a_list(self) -> None:
        with pytest.raises(ConfigError, match="include: expected a list"):
            App("memory://", include="shop.emails")

    def test_a_module_that_raises(self, package: Package) -> None:
        """Its own error is not taken for a missing module."""
        package(broken__one="import no_such_library")
        app = App("memory://", include=["broken.one"])
        with pytest.raises(ModuleNotFoundError, match="no_such_library"):
            app.load()

    async def test_a_worker_without_tasks(self, package: Package) -> None:
        package(shop__empty="")
        with pytest.raises(ConfigError, match=r"has no tasks.*it includes no others\. Name the modules.*include="):
            await App("memory://").work()
        with pytest.raises(ConfigError, match=r"has no tasks.*shop\.empty, which it includes, have none"):
            await App("memory://", include=["shop.empty"]).work()


class TestBundles:
    async def test_tasks_of_a_bundle(self, store: Store) -> None:
        mail = Bundle(queue="mail", retry=never(), timeout="30s")

        @mail.task
        async def welcome(n: int) -> int:
            return await other.call(n)

        @mail.task(queue="other")
        def other(n: int) -> int:
            return n + 1

        @mail.batch(size=3)
        async def many(jobs: list[Job[int]]) -> None: ...

        app = store.app()
        app.include(mail)
        app.include(mail)

        @mail.task(name="late")
        def late() -> None: ...

        assert app.queues == ["mail", "other"]
        assert set(app.tasks) == set(mail.tasks)
        assert welcome.job(1).timeout == "30s"
        async with app:
            work = asyncio.ensure_future(app.work())
            assert await within(welcome.call(1)) == 2
            assert await within(late.call()) is None
            app.stop()
            await within(work)

    async def test_schedules_of_a_bundle(self, memory: Store) -> None:
        reports = Bundle()

        @reports.task(name="daily")
        def daily() -> None: ...

        reports.cron("0 6 * * *", daily)
        reports.every("1h", daily, name="hourly")
        app = memory.app()
        app.include(reports)
        async with app:
            await within(app.drain())
            assert {info.name for info in await app.schedules.list()} == {"daily", "hourly"}

    def test_before_an_app_includes_it(self) -> None:
        bundle = Bundle()

        @bundle.task(name="note")
        def note() -> None: ...

        assert note() is None
        for use in (note.job, note.enqueue_sync):
            with pytest.raises(ConfigError, match=r"no app includes this bundle \(its tasks: note\)"):
                use()

    def test_two_apps(self) -> None:
        bundle = Bundle()
        App("memory://").include(bundle)
        with pytest.raises(ConfigError, match="included by another app already"):
            App("memory://", include=[bundle])

    def test_names_that_meet(self) -> None:
        app, bundle = App("memory://"), Bundle()
        app.task(name="note")(print_nothing)
        bundle.task(name="note")(print_nothing)
        with pytest.raises(ConfigError, match="a task named 'note' is registered already"):
            app.include(bundle)
        assert list(app.tasks) == ["note"]

    @pytest.mark.parametrize(
        ("options", "told"),
        [({"queue": ""}, "queue"), ({"quue": "a"}, "did you mean 'queue'"), ({"timeout": "x"}, "x")],
    )
    def test_bad_options(self, options: dict[str, object], told: str) -> None:
        with pytest.raises(HeadraceError, match=told):
            Bundle(**options)  # type: ignore[arg-type]

    def test_a_priority_that_the_store_cannot_take(self) -> None:
        bundle = Bundle(priority=1_000_000)
        bundle.task(name="note")(print_nothing)
        with pytest.raises(HeadraceError, match="priority"):
            App("memory://", include=[bundle])


def print_nothing() -> None: ...


class TestContradictions:
    """A URL in the code, and another one in the environment."""

    def test_told(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        monkeypatch.setenv("HEADRACE_URL", "postgresql://ada:secret@db/shop")
        for _ in range(2):
            App("sqlite:///code.db")
        Queue[int, int]("numbers", "sqlite:///queue.db")
        assert [record.message for record in caplog.records] == [
            f"the code says sqlite:///{file}.db, and the environment variable HEADRACE_URL says "
            f"postgresql://***@db/shop; the code wins. Write {instead} to leave the store to the environment"
            for file, instead in (("code", "App()"), ("queue", "Queue(name)"))
        ]

    def test_no_word_where_they_agree(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        monkeypatch.setenv("HEADRACE_URL", "sqlite:///same.db")
        assert App().client.settings.url == App("sqlite:///same.db").client.settings.url
        monkeypatch.delenv("HEADRACE_URL")
        App("sqlite:///alone.db")
        assert not caplog.records
