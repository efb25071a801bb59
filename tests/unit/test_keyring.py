"""Keys, and cells that open only in the place that they were sealed for."""

from __future__ import annotations

import logging
import os
import sys
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import ModuleType
from zlib import crc32

import pytest
from hypothesis import strategies as st

from headrace.core.config import Settings
from headrace.errors import ConfigError, SealError, UnknownKey
from headrace.payloads.codec import JSON, SEALED, Envelope
from headrace.payloads.keyring import Keyring, read_keyring
from headrace.payloads.sealing import resealed
from headrace.types import SECTIONS
from tests.unit.given import given

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
ID, OTHER_ID = bytes(16), bytes(15) + b"\x01"
CELL = Envelope(max_size=1_000, compress_over=None).wrap(b'{"card": "4111"}', JSON, "x")


@pytest.fixture
def keyring() -> Keyring:
    return Keyring({"new": NEW, "old": OLD})


def with_checksum(cell: bytes) -> bytes:
    """What somebody who can write to the store makes of a changed cell."""
    return cell[:1] + crc32(cell[5:]).to_bytes(4, "big") + cell[5:]


class TestCells:
    @given(st.binary(), st.sampled_from(SECTIONS), st.text(st.characters(exclude_categories=["Cs"])), st.binary())
    def test_round_trip(self, cell: bytes, section: str, tenant: str, seed: bytes) -> None:
        keyring, job_id = Keyring({"k": NEW}), (seed + bytes(16))[:16]
        for owner in (job_id, None):
            sealed = keyring.seal(cell, section, owner, tenant)
            assert keyring.open(sealed, section, owner, tenant) == cell
            assert len(sealed) <= len(cell) + 128

    def test_nothing_shows_and_nothing_repeats(self, keyring: Keyring) -> None:
        first, second = (keyring.seal(CELL, "parameters", ID) for _ in range(2))
        assert b"card" not in first
        assert b"4111" not in first
        assert first != second
        assert first[0] == SEALED

    def test_a_template_opens_in_all_jobs_of_its_tenant(self, keyring: Keyring) -> None:
        """Schedules are compared with what is stored: an equal template must stay equal."""
        sealed = keyring.seal(CELL, "parameters", None, "acme")
        assert sealed == keyring.seal(CELL, "parameters", None, "acme")
        assert keyring.open(sealed, "parameters", ID, "acme") == keyring.open(sealed, "parameters", OTHER_ID, "acme")
        for section, tenant in (("parameters", "other"), ("blob", "acme")):
            with pytest.raises(SealError, match="does not open"):
                keyring.open(sealed, section, ID, tenant)

    @pytest.mark.parametrize(
        ("section", "tenant", "job_id"),
        [
            ("vm_state", "acme", ID),
            ("result", "acme", ID),
            ("parameters", "other", ID),
            ("parameters", "", ID),
            ("parameters", "acme", OTHER_ID),
            ("parameters", "acme", None),
            ("parameters\0acme", "", ID),
            ("parameters", "acme\0", ID),
        ],
    )
    def test_it_opens_nowhere_else(self, keyring: Keyring, section: str, tenant: str, job_id: bytes | None) -> None:
        with pytest.raises(SealError, match="does not open with key 'new'"):
            keyring.open(keyring.seal(CELL, "parameters", ID, "acme"), section, job_id, tenant)

    def test_every_single_change_is_noticed(self, keyring: Keyring) -> None:
        sealed = keyring.seal(CELL, "parameters", ID, "acme")
        for at in range(len(sealed)):
            for bit in range(8):
                flipped = bytearray(sealed)
                flipped[at] ^= 1 << bit
                for cell in (bytes(flipped), with_checksum(bytes(flipped))):
                    if cell != sealed:
                        with pytest.raises(SealError):
                            keyring.open(cell, "parameters", ID, "acme")
        for length in range(len(sealed)):
            for cell in (sealed[:length], with_checksum(sealed[:length])):
                with pytest.raises(SealError):
                    keyring.open(cell, "parameters", ID, "acme")
        for cell in (sealed + b"\0", with_checksum(sealed + b"\0"), sealed + sealed):
            with pytest.raises(SealError):
                keyring.open(cell, "parameters", ID, "acme")

    def test_noise(self, keyring: Keyring) -> None:
        rng = Random(1)
        for _ in range(2_000):
            body = rng.randbytes(rng.randrange(80))
            for cell in (body, b"%c" % SEALED + body, with_checksum(b"%c" % SEALED + body.ljust(40, b"x"))):
                with pytest.raises(SealError):
                    keyring.open(cell, "parameters", ID)

    def test_what_is_not_sealed_is_refused(self, keyring: Keyring) -> None:
        for cell in (CELL, b'{"a":1}', b""):
            with pytest.raises(SealError, match=r"expected a sealed cell, got one that is not sealed.*read_unsealed"):
                keyring.open(cell, "parameters", ID)

    def test_without_keys_it_says_so(self) -> None:
        sealed = Keyring({"k": NEW}).seal(CELL, "parameters", ID)
        with pytest.raises(SealError, match=r"^parameters: it is sealed, and this process has no keys"):
            Envelope(max_size=1_000, compress_over=None).unwrap(sealed, "parameters")

    def test_keys_come_and_go(self, keyring: Keyring) -> None:
        sealed = Keyring({"old": OLD}).seal(CELL, "blob", ID)
        assert keyring.open(sealed, "blob", ID) == CELL
        with pytest.raises(UnknownKey, match="sealed with key 'old'; expected one of those of this process: 'new'"):
            Keyring({"new": NEW}).open(sealed, "blob", ID)
        with pytest.raises(SealError, match="does not open with key 'old'"):
            Keyring({"old": NEW}).open(sealed, "blob", ID)


class TestReseal:
    def test_a_cell_of_a_job(self, keyring: Keyring) -> None:
        old, only_new = Keyring({"old": OLD}), Keyring({"new": NEW})
        after = resealed(keyring, old.seal(CELL, "blob", ID, "acme"), "blob", ID, "acme")
        assert after is not None
        assert only_new.open(after, "blob", ID, "acme") == CELL
        assert resealed(keyring, after, "blob", ID, "acme") is None
        assert (keyring.key_of(after, "blob"), keyring.key_of(CELL, "blob")) == ("new", "")

    def test_a_result_is_not_bound_to_its_tenant(self, keyring: Keyring) -> None:
        after = resealed(keyring, Keyring({"old": OLD}).seal(CELL, "result", ID), "result", ID, "acme")
        assert after is not None
        assert keyring.open(after, "result", ID) == CELL

    def test_what_a_template_left_is_bound_to_the_job(self, keyring: Keyring) -> None:
        cell = Keyring({"old": OLD}).seal(CELL, "parameters", None)
        after = resealed(keyring, cell, "parameters", ID, "")
        assert after is not None
        assert keyring.open(after, "parameters", ID) == CELL
        with pytest.raises(SealError):
            keyring.open(after, "parameters", OTHER_ID)

    def test_a_template(self, keyring: Keyring) -> None:
        cell = resealed(keyring, Keyring({"old": OLD}).seal(CELL, "blob", None, "acme"), "blob", None, "acme")
        assert cell == keyring.seal(CELL, "blob", None, "acme")
        assert keyring.reseal(cell, "blob", None, "acme") is cell

    def test_what_is_not_sealed(self, keyring: Keyring) -> None:
        with pytest.raises(SealError, match="blob: expected a sealed cell"):
            resealed(keyring, CELL, "blob", ID, "")
        after = resealed(keyring, CELL, "blob", ID, "", unsealed=True)
        assert after is not None
        assert keyring.open(after, "blob", ID) == CELL

    def test_what_was_moved_is_not_made_valid(self, keyring: Keyring) -> None:
        stolen = Keyring({"old": OLD}).seal(CELL, "blob", ID, "acme")
        for section, job_id, tenant in (("blob", OTHER_ID, "acme"), ("metadata", ID, "acme"), ("blob", ID, "other")):
            with pytest.raises(SealError):
                resealed(keyring, stolen, section, job_id, tenant)
        with pytest.raises(SealError):
            resealed(keyring, stolen[:-1], "blob", ID, "acme")


def listed(keys: Mapping[str, bytes]) -> str:
    return "\n".join(f"{name}: {b64encode(key).decode()}" for name, key in keys.items())


class TestSources:
    @pytest.mark.parametrize(
        "text",
        [
            listed({"new": NEW, "old": OLD}),
            f"# keys\n\nnew:{NEW.hex()}  # seals\n  old : {OLD.hex().upper()}\n",
            f"new:{urlsafe_b64encode(NEW).decode().rstrip('=')},old:{b64encode(OLD).decode()},",
        ],
        ids=["base64", "hex", "one line"],
    )
    def test_file_and_environment(self, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "keys"
        path.touch(mode=0o600)
        path.write_text(text)
        monkeypatch.setenv("JOB_KEYS", text)
        sealed = Keyring({"old": OLD}).seal(CELL, "blob", ID)
        for source in (f"file:{path}", "env:JOB_KEYS"):
            keyring = read_keyring(source)
            assert keyring.seals_with == "new"
            assert keyring.open(sealed, "blob", ID) == CELL

    @pytest.mark.parametrize("given", [{"new": NEW, "old": OLD.hex()}, listed({"new": NEW, "old": OLD})])
    def test_a_function(self, given: object, monkeypatch: pytest.MonkeyPatch) -> None:
        module = ModuleType("vault_of_mine")
        module.keys = lambda: given  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "vault_of_mine", module)
        keyring = read_keyring("vault_of_mine:keys")
        assert repr(keyring) == "Keyring(seals with 'new', opens 'new', 'old')"

    @pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o610])
    def test_a_file_that_others_can_read(self, mode: int, tmp_path: Path) -> None:
        path = tmp_path / "keys"
        path.write_text(listed({"new": NEW}))
        path.chmod(mode)
        with pytest.raises(ConfigError, match=f"is open to others, mode {mode:04o}; run: chmod 600"):
            read_keyring(f"file:{path}")
        path.chmod(0o400)
        assert read_keyring(f"file:{path}").seals_with == "new"

    @pytest.mark.parametrize(
        ("source", "said"),
        [
            ("file:/nowhere/keys", "expected a file of keys at /nowhere/keys: No such file"),
            ("file:/", "expected a file of keys at /: Is a directory"),
            ("env:NO_KEYS_HERE", "expected keys in the environment variable NO_KEYS_HERE, but it is not set"),
            ("no_module_of_mine:keys", "no keys from a function of no_module_of_mine: ModuleNotFoundError"),
            ("os:no_such_function", "no keys from a function of os: AttributeError"),
            ("os:getpid", "expected text or a mapping of ids to keys, got int"),
        ],
    )
    def test_sources_that_give_none(self, source: str, said: str) -> None:
        with pytest.raises(ConfigError, match=r"^payloads\.sealing\.keys: ") as refused:
            read_keyring(source)
        assert said in str(refused.value)

    @pytest.mark.parametrize("given", [f"a:{b64encode(NEW).decode()}", NEW.hex(), "keys.txt", ":keys", "a:b:c"])
    def test_a_setting_that_names_no_source_is_not_shown(self, given: str) -> None:
        with pytest.raises(ConfigError, match="expected file:/path, env:NAME or module:function") as refused:
            Settings.load({"payloads": {"sealing": {"keys": given}}}, env={}, toml={})
        assert given not in str(refused.value)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "expected at least one key, got none"),
            ("# nothing yet\n", "expected at least one key, got none"),
            (b64encode(NEW).decode(), "key 1: expected an id, a colon and the key"),
            (f"a:{NEW.hex()}\nb", "key 2: expected an id, a colon and the key"),
            (f"a:{NEW.hex()}\na:{OLD.hex()}", "expected each id once, got 'a' twice"),
            (f"a:{NEW.hex()[:-2]}", "key 'a': expected 32 bytes, or these as base64 or hex, got text of 62 characters"),
            (f"a:{b64encode(NEW[:16]).decode()}", "key 'a': expected 32 bytes"),
            ("a:not base64 at all!", "key 'a': expected 32 bytes"),
            ("a:", "key 'a': expected 32 bytes, or these as base64 or hex, got text of 0 characters"),
            (f"{'x' * 33}:{NEW.hex()}", "key 1: expected an id of 1 to 32 letters"),
            (f"{NEW.hex()}:a", "key 1: expected an id of 1 to 32 letters"),
            (f"é:{NEW.hex()}", "key 1: expected an id of 1 to 32 letters"),
        ],
    )
    def test_bad_keys_are_refused_and_not_shown(self, text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JOB_KEYS", text)
        with pytest.raises(ConfigError) as refused:
            read_keyring("env:JOB_KEYS")
        assert said in str(refused.value)
        show_no_key(str(refused.value), repr(refused.value), str(refused.value.to_dict()))

    @pytest.mark.parametrize("key", [NEW[:31], bytearray(NEW), 7, None, ""])
    def test_bad_keys_of_a_function(self, key: object, monkeypatch: pytest.MonkeyPatch) -> None:
        module = ModuleType("vault_of_mine")
        module.keys = lambda: {"a": key}  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "vault_of_mine", module)
        with pytest.raises(ConfigError, match="key 'a': expected 32 bytes") as refused:
            read_keyring("vault_of_mine:keys")
        show_no_key(str(refused.value))

    def test_keys_are_in_no_repr(self, keyring: Keyring, caplog: pytest.LogCaptureFixture) -> None:
        logging.getLogger("headrace").error("%s %r %s", keyring, keyring, vars(keyring))
        show_no_key(repr(keyring), str(keyring), repr(vars(keyring)), caplog.text)


def show_no_key(*texts: str) -> None:
    """No key, in no way of writing it."""
    for text in texts:
        for key in (NEW, OLD):
            for part in (key.hex()[:16], b64encode(key).decode()[:16], repr(key)[2:20]):
                assert part not in text


def test_the_nonce_is_random(keyring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: drawn.append(size) or real(size))
    keyring.seal(CELL, "blob", ID)
    keyring.seal(CELL, "blob", None)
    assert drawn == [12]


def test_cells_that_were_sealed_before_still_open() -> None:
    """The format is stored: a change needs a new scheme."""
    keyring = Keyring({"new": NEW, "old": OLD})
    of_a_template = bytes.fromhex(
        "202f4c639a02036f6c640000000000000000000000002f8aef6b5eeb4375b2e7cfe39141be64759f5646b06634"
    )
    of_a_job = bytes.fromhex(
        "20952a1b0701036f6c64000102030405060708090a0b1508c8e6496f371f84bae036cdcfacfb99299d5e15b434"
    )
    assert keyring.open(of_a_template, "parameters", ID, "acme") == b"\x01\x00\x00\x00\x00{}"
    assert keyring.open(of_a_job, "vm_state", bytes(range(16)), "acme") == b"\x01\x00\x00\x00\x00{}"
