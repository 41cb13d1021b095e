"""Lists kept on disk: whole or not at all, this user's alone, bounded, and never a reason not to start."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from steelyard_registry import cache as module
from steelyard_registry.cache import Cache
from steelyard_registry.errors import RegistryError
from steelyard_registry.folder import cache_folder, private_folder

URL = "zookeeper://127.0.0.1:2181/dubbo"


def the_file(folder: Path) -> Path:
    (path,) = folder.rglob("*.list")
    return path


def test_a_list_comes_back_as_it_was(tmp_path: Path) -> None:
    assert Cache(URL, str(tmp_path)).is_empty
    assert Cache(URL, str(tmp_path)).load("ads.Ctr") is None
    assert Cache(URL, str(tmp_path)).store("ads.Ctr", ["a%20b", "größe", ""])
    cache = Cache(URL, str(tmp_path))
    kept = cache.load("ads.Ctr")
    assert kept is not None
    assert kept.entries == ("a%20b", "größe", "")
    assert 0 <= kept.age_s < 60
    assert not cache.is_empty
    assert cache.load("ads.Other") is None
    assert Cache(URL + "2", str(tmp_path)).load("ads.Ctr") is None


def test_an_empty_list_is_a_list(tmp_path: Path) -> None:
    cache = Cache(URL, str(tmp_path))
    cache.store("ads.Ctr", [])
    kept = cache.load("ads.Ctr")
    assert kept is not None
    assert kept.entries == ()


def test_only_the_user_reads_and_writes(tmp_path: Path) -> None:
    Cache(URL, str(tmp_path)).store("ads.Ctr", ["a"])
    path = the_file(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:-3], "it is torn"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "format 9"),
        (lambda text: text.replace("ads.Ctr", "ads.Oth", 1), "another registry's"),
        (lambda text: "", "Expecting value"),
        (lambda text: "[]\n", "list indices"),
        (lambda text: '{"format": 1}\n', "registry"),
        (lambda text: "\x00" * 100, "Expecting value"),
    ],
)
def test_a_damaged_file_is_ignored_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: object, words: str
) -> None:
    cache = Cache(URL, str(tmp_path))
    cache.store("ads.Ctr", ["one", "two"])
    path = the_file(tmp_path)
    path.write_text(damage(path.read_text()))  # type: ignore[operator]
    assert cache.load("ads.Ctr") is None
    assert words in caplog.text
    assert cache.store("ads.Ctr", ["three"])
    assert cache.load("ads.Ctr") is not None


def test_bytes_that_are_no_text_are_ignored(tmp_path: Path) -> None:
    cache = Cache(URL, str(tmp_path))
    cache.store("ads.Ctr", ["one"])
    the_file(tmp_path).write_bytes(b"\xff\xfe{}")
    assert cache.load("ads.Ctr") is None


def test_old_lists_are_not_started_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(URL, str(tmp_path))
    cache.store("ads.Ctr", ["one"])
    monkeypatch.setattr(module, "MAX_AGE_S", -1.0)
    assert cache.load("ads.Ctr") is None


def test_a_clock_set_back_makes_nothing_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(URL, str(tmp_path))
    cache.store("ads.Ctr", ["one"])
    monkeypatch.setattr(module.time, "time", lambda: 1000.0)
    kept = cache.load("ads.Ctr")
    assert kept is not None
    assert kept.age_s == 0.0


def test_files_and_registries_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 3)
    monkeypatch.setattr(module, "MAX_REGISTRIES", 2)
    for number in range(6):
        cache = Cache(f"{URL}{number}", str(tmp_path))
        for interface in range(5):
            cache.store(f"ads.{interface}", ["x"])
        assert cache.load("ads.4") is not None
    folders = list((tmp_path / "steelyard" / "registry").iterdir())
    assert len(folders) == 2
    assert all(len(list(folder.iterdir())) == 3 for folder in folders)


def test_entries_and_bytes_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(URL, str(tmp_path))
    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    cache.store("ads.Ctr", ["a", "b", "c", "with\nline"])
    kept = cache.load("ads.Ctr")
    assert kept is not None
    assert kept.entries == ("a", "b")
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    assert not cache.store("ads.Ctr", ["x" * 200])
    assert "is not kept" in caplog.text
    assert cache.load("ads.Ctr") is None  # the file that is there is too large as well


def test_off_keeps_nothing(tmp_path: Path) -> None:
    cache = Cache(URL, "off")
    assert not cache.store("ads.Ctr", ["a"])
    assert cache.is_empty


def test_a_folder_that_is_not_there_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(URL, str(tmp_path / "nowhere"))
    assert not cache.store("ads.Ctr", ["a"])
    assert cache.load("ads.Ctr") is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_folder_that_vanishes_is_made_again(tmp_path: Path) -> None:
    cache = Cache(URL, str(tmp_path))
    cache.store("ads.Ctr", ["a"])
    path = the_file(tmp_path)
    path.unlink()
    path.parent.rmdir()
    assert cache.store("ads.Ctr", ["b"])


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "steelyard").mkdir(mode=0o777)
    (tmp_path / "steelyard").chmod(0o777)
    with pytest.raises(RegistryError, match="of this user alone"):
        private_folder(tmp_path / "steelyard")
    assert not Cache(URL, str(tmp_path)).store("ads.Ctr", ["a"])


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "steelyard").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RegistryError):
        private_folder(tmp_path / "steelyard")


def test_where_the_folder_is(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "home")
    assert cache_folder({"HOME": str(tmp_path / "home")}) == tmp_path / "home" / ".cache" / "steelyard"
    assert cache_folder({"HOME": "/x", "XDG_CACHE_HOME": str(tmp_path / "own")}) == tmp_path / "own" / "steelyard"
    runtime = {"HOME": "/nowhere/at/all", "XDG_RUNTIME_DIR": str(tmp_path)}
    assert cache_folder(runtime) == tmp_path / "steelyard"
