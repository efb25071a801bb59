"""How the tests of the dashboard come by a Chromium: each of the three ways, with a package manager and a download
server that stand in for the distribution's and for Playwright's. What they hand out is a script that only has the name;
the driver that downloads it is the real one."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests import chromium

ROOT = Path(__file__).parents[1]
SCRIPT = "#!/bin/sh\nexit 0\n"
APT = """#!/bin/sh
echo "$DEBIAN_FRONTEND $@" >> "$HEADRACE_APT_LOG"
[ -n "$HEADRACE_APT_FAILS" ] && exit 100
case "$1" in install) printf '#!/bin/sh\\nexit 0\\n' > "{place}/chromium"; /bin/chmod +x "{place}/chromium";; esac
exit 0
"""


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no browser: its PATH is this folder. Whoever runs the tests may install packages here."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "browsers"))
    monkeypatch.setenv("PLAYWRIGHT_DOWNLOAD_HOST", "http://127.0.0.1:9")  # nobody answers there
    monkeypatch.setenv("HEADRACE_APT_LOG", str(tmp_path / "apt.log"))
    monkeypatch.delenv(chromium.VARIABLE, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return place


def _program(path: Path, text: str = SCRIPT) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def _with_apt(place: Path) -> None:
    _program(place / "apt-get", APT.format(place=place))


def test_one_that_is_there_is_taken(bare: Path) -> None:
    assert chromium.find() is None
    there = _program(bare / "chromium-browser")
    _with_apt(bare)
    assert chromium.get() == str(there)
    assert not Path(os.environ["HEADRACE_APT_LOG"]).exists(), "nothing is installed"


def test_one_that_is_named_goes_first_and_must_be_there(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(bare / "chromium")
    monkeypatch.setenv(chromium.VARIABLE, str(_program(bare / "mine")))
    assert chromium.find() == str(bare / "mine")
    monkeypatch.setenv(chromium.VARIABLE, str(bare / "nobody"))
    assert chromium.find() is None


def test_the_distributions_is_installed(bare: Path) -> None:
    _with_apt(bare)
    assert chromium.get() == str(bare / "chromium")
    assert Path(os.environ["HEADRACE_APT_LOG"]).read_text().splitlines() == [
        "noninteractive update -q",
        "noninteractive install -q -y --no-install-recommends chromium",
    ]


class _Downloads(BaseHTTPRequestHandler):
    """Whatever is asked for is an archive with a browser under every name that it may have."""

    def do_GET(self) -> None:
        body = io.BytesIO()
        with zipfile.ZipFile(body, "w") as archive:
            for name in (
                "chrome-headless-shell-linux64/chrome-headless-shell",
                "chrome-headless-shell-linux-arm64/chrome-headless-shell",
                "chrome-linux/headless_shell",
                "ffmpeg-linux",
            ):
                entry = zipfile.ZipInfo(name)
                entry.external_attr = 0o755 << 16
                archive.writestr(entry, SCRIPT)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body.getvalue())))
        self.end_headers()
        self.wfile.write(body.getvalue())

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def downloads(bare: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Downloads)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("PLAYWRIGHT_DOWNLOAD_HOST", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("downloads")
@pytest.mark.parametrize("apt", ["none", "fails", "not ours to use"])
def test_playwrights_own_is_downloaded(bare: Path, apt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if apt == "not ours to use":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    if apt != "none":
        _with_apt(bare)
        monkeypatch.setenv("HEADRACE_APT_FAILS", "yes")
    found = chromium.get()
    assert found is not None
    assert Path(found).is_relative_to(os.environ["PLAYWRIGHT_BROWSERS_PATH"])
    assert os.access(found, os.X_OK)
    tried = Path(os.environ["HEADRACE_APT_LOG"])
    assert (tried.read_text().splitlines() if tried.exists() else []) == (
        ["noninteractive update -q"] if apt == "fails" else []
    )


@pytest.mark.usefixtures("bare")
def test_where_none_can_be_had_one_line_says_what_to_install() -> None:
    command = [sys.executable, "-m", "tests.chromium"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{chromium.MISSING}\n"
