"""Whether a file could be written, told before there is anything to write."""

import os
from pathlib import Path

import pytest

from fastgen_cli.errors import UserError
from fastgen_cli.outputs import check_file, write_file


def test_what_could_be_written_stays_as_it_is(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_bytes(b"before")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (new, old, pipe):
        check_file(path, "--output")
    assert not new.exists()
    assert old.read_bytes() == b"before"
    write_file(old, b"after", "--output")
    assert old.read_bytes() == b"after"


def test_the_check_says_what_writing_would_say(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (
        tmp_path,
        tmp_path / "none" / "x",
        tmp_path / "file" / "x",
        tmp_path / ("x" * 300),
    ):
        with pytest.raises(UserError) as checked:
            check_file(path, "--output")
        with pytest.raises(UserError) as written:
            write_file(path, b"", "--output")
        assert str(checked.value) == str(written.value)


def test_rights_are_heeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    (tmp_path / "old").touch()
    for name in ("old", "new"):
        with pytest.raises(UserError, match="Permission denied"):
            check_file(tmp_path / name, "--output")
