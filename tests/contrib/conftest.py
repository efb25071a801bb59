"""A Django project as people make them: ``django-admin startproject``, the example's app, and settings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from tests.postgres import server

EXAMPLE = Path(__file__).parents[2] / "examples" / "django"
SETTINGS = """
INSTALLED_APPS += ["orders", "headrace.contrib.django"]
ROOT_URLCONF = "orders.urls"
ALLOWED_HOSTS = ["*"]
DATABASES = {{
    "default": {{
        "ENGINE": "django.db.backends.postgresql",
        "NAME": {name!r},
        "USER": "headrace",
        "HOST": "127.0.0.1",
        "PORT": {port},
    }}
}}
TASKS = {{
    "default": {{
        "BACKEND": "headrace.contrib.django.backend.HeadraceBackend",
        "QUEUES": ["default", "mail"],
    }},
    "patient": {{
        "BACKEND": "headrace.contrib.django.backend.HeadraceBackend",
        "OPTIONS": {{"max_attempts": 3}},
    }},
    "forgetful": {{
        "BACKEND": "headrace.contrib.django.backend.HeadraceBackend",
        "OPTIONS": {{"result_ttl": "0s"}},
    }},
}}
"""


class Project:
    """A project in a directory, with a database of its own."""

    def __init__(self, directory: Path, database: str) -> None:
        self.directory = directory
        self.database = database
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}

    def manage(self, *arguments: str, code: int = 0) -> str:
        """Run ``manage.py``; what it printed."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        told = done.stdout + done.stderr
        assert done.returncode == code, told
        return told

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start ``manage.py``; its output goes to a file beside it."""
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def add_settings(self, text: str) -> None:
        with (self.directory / "shop" / "settings.py").open("a") as file:
            file.write(f"\n{text}\n")

    def url(self) -> str:
        return server().url(self.database)


@pytest.fixture
def scaffold(tmp_path: Path) -> Project:
    """A project whose database does not exist."""
    database = f"shop_{uuid4().hex[:12]}"
    subprocess.run(
        [sys.executable, "-m", "django", "startproject", "shop", str(tmp_path)],
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("DJANGO")},
    )
    shutil.copytree(EXAMPLE / "orders", tmp_path / "orders")
    made = Project(tmp_path, database)
    made.add_settings(SETTINGS.format(name=database, port=server().port))
    return made


@pytest.fixture
def project(scaffold: Project) -> Iterator[Project]:
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{scaffold.database}"')
    yield scaffold
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{scaffold.database}" WITH (FORCE)')
