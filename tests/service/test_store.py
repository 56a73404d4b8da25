"""The store in SQLite: with files that were altered, copied, removed or cut off beneath it."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import sqlite3
import stat
import subprocess
import zlib
from pathlib import Path

import pytest
from quick_python import quick

from coheat.service.locking import lock_directory, release
from coheat.service.sqlite_store import SqliteStore
from coheat.service.store import (
    BundleChange,
    Interaction,
    NewInteraction,
    StoreError,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with three bundles, one of them removed, and two interactions; closed."""
    path = tmp_path / "state" / "store.sqlite"
    store = SqliteStore(path)
    store.put_bundle("a", ["1"], "model")
    store.put_bundle("b", ["2"], None)
    store.add_interactions([NewInteraction("u", "a")])
    store.add_interactions([NewInteraction("v", "a")])
    store.remove_bundle("c")
    store.put_columns("item", "i", {"title": "x"})
    store.close()
    return path


def alter(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE state SET latest = 0", "counters are not as written"),
        ("UPDATE state SET interactions = 3", "counters are not as written"),
        ("DELETE FROM state", "counters are missing"),
        ("DELETE FROM interactions WHERE user_id = 'u'", "1 interactions instead of 2"),
        ("DELETE FROM bundles WHERE bundle_id = 'c'", "2 bundles instead of 3"),
        ("UPDATE bundles SET sequence = 99 WHERE bundle_id = 'a'", "newer than the latest write, 99 than 6"),
        ("UPDATE bundles SET born = 7 WHERE bundle_id = 'a'", "the bundle 'a' is not as written"),
        (
            "UPDATE interactions SET user_id = 'w' WHERE user_id = 'u'",
            "interaction with bundle 'a' is not as",
        ),
        ("UPDATE details SET columns = '{}'", "the columns of the item 'i' are not as written"),
        ("DELETE FROM details", "0 details instead of 1"),
        ("UPDATE interactions SET happened_at = 1", "interaction with bundle 'a' is not as"),
        ("UPDATE interactions SET kind = 'shown' WHERE user_id = 'u'", "interaction with bundle 'a' is not"),
    ],
)
def test_what_was_altered_is_noticed_and_not_written_over(path: Path, statement: str, said: str) -> None:
    alter(path, statement)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=f"store.sqlite: damaged .*{said}.*coheat state restore"):
        _read_all(path)
    assert len(path.read_bytes()) == len(before)


def _read_all(path: Path) -> tuple[int, int]:
    store = SqliteStore(path)
    try:
        assert list(store.details()) is not None
        return len(list(store.bundles())), len(list(store.interactions()))
    finally:
        store.close()


def test_a_copy_without_its_log_is_refused(path: Path, tmp_path: Path) -> None:
    store = SqliteStore(path)
    store.put_bundle("d", ["4"], "model")
    shutil.copy(path, tmp_path / "bare.sqlite")
    with pytest.raises(StoreError, match=r"without its log .*coheat state backup"):
        SqliteStore(tmp_path / "bare.sqlite")
    fresh = SqliteStore(tmp_path / "fresh.sqlite")
    fresh.put_bundle("d", ["4"], "model")
    shutil.copy(tmp_path / "fresh.sqlite", tmp_path / "bare too.sqlite")
    with pytest.raises(StoreError, match="without its log"):
        SqliteStore(tmp_path / "bare too.sqlite")
    shutil.copy(f"{path}-wal", tmp_path / "bare.sqlite-wal")
    assert _read_all(tmp_path / "bare.sqlite") == (4, 2)
    store.close()
    fresh.close()
    shutil.copy(path, tmp_path / "closed.sqlite")
    assert _read_all(tmp_path / "closed.sqlite") == (4, 2)
    path.unlink()
    (tmp_path / "state" / "store.sqlite-wal").write_bytes(b"all that is left")
    with pytest.raises(StoreError, match="missing or empty, while its log"):
        SqliteStore(path)
    assert (tmp_path / "state" / "store.sqlite-wal").read_bytes() == b"all that is left"


@pytest.mark.parametrize("ending", ["", "-wal"])
@pytest.mark.parametrize("how", ["removed", "exchanged", "cut off"])
def test_files_that_change_under_its_feet_stop_all_writes(path: Path, ending: str, how: str) -> None:
    store = SqliteStore(path)
    store.put_bundle("d", ["4"], "model")
    store.check()
    file = Path(f"{path}{ending}")
    aside = file.with_name("aside")
    shutil.copy(file, aside)
    if how == "removed":
        os.link(file, file.with_name("kept"))
        file.unlink()
    elif how == "exchanged":
        os.link(file, file.with_name("kept"))
        aside.replace(file)
    else:
        os.truncate(file, 100)
    for _ in range(2):
        with pytest.raises(StoreError, match=f"{how} while the service runs") as caught:
            store.put_bundle("e", ["5"], "model")
        assert f"{file.name} was {how}" in caught.value.reason
        assert str(path.parent) not in caught.value.reason
        with pytest.raises(StoreError, match=how):
            store.check()
    if how != "cut off":  # put back, it goes on
        file.with_name("kept").replace(file)
        store.check()
        store.put_bundle("f", ["5"], "model")
        store.close()
        assert _read_all(path) == (5, 2)


def test_a_full_disk_is_known_until_there_is_room_again(path: Path) -> None:
    store = SqliteStore(path)
    store.put_bundle("d", ["4"], "model")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StoreError, match="make room"):
            store.put_bundle("e", ["x" * 1000], "model")
        for _ in range(2):
            with pytest.raises(StoreError, match="make room"):
                store.check()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    store.check()
    store.put_bundle("e", ["5"], "model")
    store.close()
    assert _read_all(path) == (5, 2)


def test_files_are_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = SqliteStore(tmp_path / "state" / "store.sqlite")
        store.put_bundle("a", ["1"], None)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "state").iterdir()}
        assert modes == dict.fromkeys(["store.sqlite", "store.sqlite-wal", "store.sqlite-shm"], 0o600)
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
        store.close()
        (tmp_path / "state" / "store.sqlite").chmod(0o644)
        SqliteStore(tmp_path / "state" / "store.sqlite").close()
        assert stat.S_IMODE((tmp_path / "state" / "store.sqlite").stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_removing_a_file_does_not_open_the_lock(tmp_path: Path) -> None:
    held = lock_directory(tmp_path)
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(StoreError, match="another service works on it"):
        lock_directory(tmp_path)
    release(held)
    release(lock_directory(tmp_path))


# --- an older format ----------------------------------------------------------------------------

FORMAT_1 = """
PRAGMA journal_mode = WAL;
CREATE TABLE sequence (latest INTEGER NOT NULL);
CREATE TABLE bundles (
    bundle_id TEXT PRIMARY KEY, sequence INTEGER NOT NULL UNIQUE, item_ids TEXT, created_on TEXT,
    written_at REAL NOT NULL, checksum TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE interactions (
    user_id TEXT NOT NULL, bundle_id TEXT NOT NULL, sequence INTEGER NOT NULL UNIQUE,
    written_at REAL NOT NULL, checksum TEXT NOT NULL, PRIMARY KEY (user_id, bundle_id)
) WITHOUT ROWID;
CREATE INDEX interactions_by_bundle ON interactions (bundle_id);
PRAGMA application_id = 1668245605; PRAGMA user_version = 1;
"""


def write_format_1(path: Path, latest: int = 7) -> None:
    def digest(*values: object) -> str:
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]

    connection = sqlite3.connect(path)
    connection.executescript(FORMAT_1)
    connection.execute("INSERT INTO sequence VALUES (?)", (latest,))
    for name, sequence, items, made_on in (
        ("new", 5, '["1", "é"]', "m"), ("trained", 3, '["2"]', None), ("gone", 7, None, None),
    ):  # fmt: skip
        row = name, sequence, items, made_on
        connection.execute("INSERT INTO bundles VALUES (?, ?, ?, ?, 1.5, ?)", (*row, digest(*row)))
    for user, bundle, sequence in (("u", "new", 4), ("v", "new", 6)):
        row_ = user, bundle, sequence
        connection.execute("INSERT INTO interactions VALUES (?, ?, ?, 1.5, ?)", (*row_, digest(*row_)))
    connection.commit()
    connection.close()


def test_a_store_of_the_first_format_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    write_format_1(path)
    store = SqliteStore(path)
    found = {change.bundle_id: change for change in store.bundles()}
    assert list(found) == ["trained", "new", "gone"]
    assert (found["new"].item_ids, found["new"].born, found["new"].created_on) == (("1", "é"), 4, "m")
    assert (found["trained"].item_ids, found["trained"].born) == (("2",), 0)
    assert found["gone"].item_ids is None
    assert store.takers("new") == ["u", "v"]
    assert store.put_bundle("next", ["1"], "m") == 8
    store.close()
    assert _read_all(path) == (4, 2)
    old = sqlite3.connect(tmp_path / "store.format-1.sqlite")
    assert old.execute("SELECT count(*) FROM bundles").fetchone() == (3,)
    old.close()


FORMAT_2 = """
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1), latest INTEGER NOT NULL, bundles INTEGER NOT NULL,
    interactions INTEGER NOT NULL, checksum INTEGER NOT NULL, in_use INTEGER NOT NULL
);
CREATE TABLE bundles (
    bundle_id TEXT PRIMARY KEY, sequence INTEGER NOT NULL UNIQUE, born INTEGER NOT NULL, item_ids TEXT,
    created_on TEXT, request TEXT, written_at REAL NOT NULL, checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE interactions (
    sequence INTEGER PRIMARY KEY, user_id TEXT NOT NULL, bundle_id TEXT NOT NULL,
    written_at REAL NOT NULL, checksum INTEGER NOT NULL
);
CREATE UNIQUE INDEX interactions_by_bundle ON interactions (bundle_id, user_id);
PRAGMA application_id = 1668245605; PRAGMA user_version = 2;
"""


def write_format_2(path: Path) -> None:
    def digest(*values: object) -> int:
        return zlib.crc32("\0".join(map(str, values)).encode())

    connection = sqlite3.connect(path)
    connection.executescript(FORMAT_2)
    connection.execute("INSERT INTO state VALUES (1, 6, 3, 2, ?, 0)", (digest(6, 3, 2),))
    for row in (
        ("new", 1, 1, '["1", "é"]', "m", "key:body"),
        ("trained", 2, 0, '["2"]', None, None),
        ("gone", 5, 5, None, None, None),
    ):
        connection.execute("INSERT INTO bundles VALUES (?, ?, ?, ?, ?, ?, 1.5, ?)", (*row, digest(*row)))
    for pair in ((3, "u", "new"), (6, "v", "new")):
        connection.execute("INSERT INTO interactions VALUES (?, ?, ?, 2.25, ?)", (*pair, digest(*pair)))
    connection.commit()
    connection.close()


def test_a_store_of_the_second_format_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    write_format_2(path)
    store = SqliteStore(path)
    assert list(store.bundles()) == [
        BundleChange(1, "new", ("1", "é"), "m", 1, 1.5, "key:body"),
        BundleChange(2, "trained", ("2",), None, 0, 0.0),
        BundleChange(5, "gone", None, None, 5, 1.5),
    ]
    assert list(store.interactions()) == [
        Interaction(sequence, user, "new", "took", 2.25, "") for sequence, user in ((3, "u"), (6, "v"))
    ]
    assert store.add_interactions([NewInteraction("w", "new", "shown")]).sequence == 7
    store.close()
    assert _read_all(path) == (3, 3)
    assert (tmp_path / "store.format-2.sqlite").exists()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE state SET latest = 5",
        "DELETE FROM interactions WHERE user_id = 'u'",
        "UPDATE bundles SET item_ids = '[]' WHERE bundle_id = 'new'",
        "UPDATE interactions SET user_id = 'w' WHERE user_id = 'u'",
    ],
)
def test_a_damaged_store_of_the_second_format_stays_as_it_is(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "store.sqlite"
    write_format_2(path)
    alter(path, statement)
    for _ in range(2):
        with pytest.raises(StoreError, match="damaged"):
            SqliteStore(path)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()


def test_a_damaged_store_of_the_first_format_stays_as_it_is(tmp_path: Path) -> None:
    for name, latest, statement in (
        ("one", 0, None),
        ("two", 7, "UPDATE bundles SET item_ids = '[]' WHERE bundle_id = 'new'"),
    ):
        path = tmp_path / f"{name}.sqlite"
        write_format_1(path, latest)
        if statement:
            alter(path, statement)
        for _ in range(2):
            with pytest.raises(StoreError, match="damaged"):
                SqliteStore(path)
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM interactions").fetchone() == (2,)
        connection.close()


# --- backups ------------------------------------------------------------------------------------


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = [quick("coheat"), "state", *arguments]
    return subprocess.run(done, capture_output=True, text=True, timeout=240, check=False)


def test_a_backup_is_made_while_it_is_written_to_and_restored(path: Path, tmp_path: Path) -> None:
    state, backup = path.parent, tmp_path / "backup.sqlite"
    store = SqliteStore(path)
    store.put_bundle("d", ["4"], "model")
    done = command("backup", str(state), str(backup), "--json")
    assert (done.returncode, json.loads(done.stdout)["bundles"]) == (0, 4), done.stderr
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    store.put_bundle("e", ["5"], "model")
    store.close()
    assert _read_all(path) == (5, 2)
    again = command("backup", str(state), str(backup))
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert json.loads(command("check", str(backup), "--json").stdout) == {
        "file": str(backup), "latest": 7, "bundles": 4, "interactions": 2,
    }  # fmt: skip
    restored = command("restore", str(state), str(backup))
    assert restored.returncode == 0, restored.stderr
    assert _read_all(path) == (4, 2)
    [kept] = state.glob("store.replaced-*.sqlite")
    assert _read_all(kept) == (5, 2)
    assert command("restore", str(tmp_path / "elsewhere"), str(backup)).returncode == 0
    assert _read_all(tmp_path / "elsewhere" / "store.sqlite") == (4, 2)


def test_what_is_wrong_with_a_backup_is_told(path: Path, tmp_path: Path) -> None:
    held = lock_directory(path.parent)
    try:
        refused = command("restore", str(path.parent), str(path))
        assert "another service works on it" in refused.stderr
    finally:
        release(held)
    altered = tmp_path / "altered.sqlite"
    shutil.copy(path, altered)
    alter(altered, "UPDATE interactions SET user_id = 'w' WHERE user_id = 'u'")
    (tmp_path / "text.sqlite").write_text("no database" * 100)
    for name, said in (
        ("altered", "not as written"),
        ("text", "not a database"),
        ("nothing", "no such file"),
    ):
        file = str(tmp_path / f"{name}.sqlite")
        for arguments in (("check", file), ("restore", str(path.parent), file)):
            done = command(*arguments)
            assert done.returncode == 2
            assert said in done.stderr
            assert "Traceback" not in done.stderr
    assert _read_all(path) == (3, 2)
