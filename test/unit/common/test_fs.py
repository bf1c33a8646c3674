from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
import time

import pytest

from keelstore.common import concurrency, disk_calls, fs, unsynced
from keelstore.common.errors import DeviceFull, DeviceUnavailable, XattrNotSupported
from test.support.faulty_os import Crash, FaultyOs

# -- durable verbs


def test_a_device_that_went_away_is_not_made_again(tmp_path):
    device = f"{tmp_path}/devices/sda1"
    for path in (device, f"{device}/objects/7/abc"):
        with pytest.raises(DeviceUnavailable, match="sda1"):
            fs.make_directories(path, device)
    assert os.listdir(tmp_path) == []
    os.makedirs(device)
    assert fs.make_directories(f"{device}/objects/7", device) == (f"{device}/objects", device)
    assert fs.make_directories(device, device) == ()


def test_directories_made_are_reported_innermost_first(tmp_path):
    path = f"{tmp_path}/a/b/c"
    assert fs.make_directories(path, str(tmp_path)) == (f"{tmp_path}/a/b", f"{tmp_path}/a", str(tmp_path))
    assert fs.make_directories(path, str(tmp_path)) == ()
    assert fs.make_directories(f"{tmp_path}/a/b/d", str(tmp_path)) == (f"{tmp_path}/a/b",)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        fs.make_directories(f"{tmp_path}/file/x", str(tmp_path))


@pytest.mark.parametrize("tmpfile_works", [True, False])
def test_linked_file_is_whole_and_replaces(tmp_path, monkeypatch, tmpfile_works):
    monkeypatch.setattr(fs, "_tmpfile_works", tmpfile_works)
    for text in (b"one", b"two"):
        directory = f"{tmp_path}/d/h"
        made = fs.make_directories(directory, str(tmp_path))
        new = fs.create_file(directory, f"{tmp_path}/d/tmp", str(tmp_path))
        fs.write_all(new.fd, text)
        fs.set_xattr(new.fd, "user.x", text)
        assert os.listdir(directory) == ([] if text == b"one" else ["f"])
        fs.sync_file(new.fd)
        fs.link_durably(new, f"{directory}/f", made)
        new.discard()
        new.discard()
        assert fs.read_file(f"{directory}/f") == text
        assert fs.get_xattr(f"{directory}/f", "user.x") == text
        assert os.listdir(directory) == ["f"]
    if not tmpfile_works:
        assert os.listdir(f"{tmp_path}/d/tmp") == []


def test_no_file_brings_back_a_device_that_is_gone(tmp_path, monkeypatch):
    """Also where the name of a new file goes into a directory that has yet to be made."""
    monkeypatch.setattr(fs, "_tmpfile_works", False)
    device, other = f"{tmp_path}/sda", tmp_path / "sdb"
    other.mkdir()
    (other / "f").write_text("")
    calls = [lambda: fs.create_file(f"{device}/objects", f"{device}/tmp", device),
             lambda: fs.link_existing(f"{other}/f", f"{device}/objects/f", device),
             lambda: fs.link_existing_unsynced(f"{other}/f", f"{device}/objects/f", device),
             lambda: fs.quarantine(f"{other}/f", f"{device}/quarantined/objects")]
    for call in calls:
        with pytest.raises(DeviceUnavailable):
            call()
        assert os.listdir(tmp_path) == ["sdb"]


def test_file_system_without_unnamed_files_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(fs, "_tmpfile_works", True)
    real, calls = os.open, []

    def refuse(path, flags, mode=0o777, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            calls.append(path)
            raise OSError(errno.EOPNOTSUPP, "no")
        return real(path, flags, mode, **kwargs)

    monkeypatch.setattr(fs.os, "open", refuse)
    for _ in range(2):
        new = fs.create_file(str(tmp_path))
        assert len(os.listdir(tmp_path)) == 1
        new.discard()
    assert len(calls) == 1 and os.listdir(tmp_path) == []


def written(directory, device, name="f"):
    """The directories that were synced for a file in ``directory``, each once."""
    made = fs.make_directories(directory, device)
    new = fs.create_file(directory, f"{device}/tmp", device)
    fs.write_all(new.fd, b"x")
    fs.sync_file(new.fd)
    fs.link_durably(new, f"{directory}/{name}", made)


@pytest.fixture
def synced(monkeypatch):
    """Directories above that of a file that are synced."""
    found, sync = [], fs.syncing_directories
    monkeypatch.setattr(fs, "syncing_directories", lambda paths, *others: (found.extend(paths), sync(paths, *others))[1])
    return found


def test_directories_of_a_write_that_gave_up_are_synced_by_the_next(tmp_path, synced):
    """Seed 1703 of the simulation: else a power failure takes the name of the second's directory, and what is in it."""
    device = str(tmp_path)
    directory = f"{device}/objects/1/abc/hash"
    fs.make_directories(directory, device)
    fs.remove_directory(directory)
    written(directory, device)
    assert synced == [f"{device}/objects/1/abc", f"{device}/objects/1", f"{device}/objects", device]
    del synced[:]
    written(directory, device, "g")
    written(f"{device}/objects/1/abc/other", device)
    assert synced == [f"{device}/objects/1/abc"]
    assert not [path for path in unsynced._noted if path.startswith(device)]


def test_directories_of_a_write_that_is_under_way_are_synced_by_others(tmp_path, synced):
    device = str(tmp_path)
    first, second = f"{device}/objects/1/abc/first", f"{device}/objects/1/abc/second"
    made = fs.make_directories(first, device)
    written(second, device)
    assert synced == [f"{device}/objects/1/abc", f"{device}/objects/1", f"{device}/objects", device]
    del synced[:]
    written(first, device)
    assert synced == [f"{device}/objects/1/abc"]
    fs.sync_above(first, made)
    assert synced[1:] == list(made)


def test_a_directory_that_is_made_while_the_one_above_is_synced_stays_noted(tmp_path, monkeypatch):
    device, sync = str(tmp_path), fs.syncing_directories
    directory = f"{device}/a"

    def slow(paths):
        yield from sync(paths)
        os.rmdir(directory)
        fs.make_directories(directory, device)

    fs.make_directories(directory, device)
    monkeypatch.setattr(fs, "syncing_directories", slow)
    fs.sync_above(directory)
    assert directory in unsynced._noted
    monkeypatch.setattr(fs, "syncing_directories", sync)
    fs.sync_above(directory)
    assert directory not in unsynced._noted


def test_what_is_noted_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(unsynced, "MAX_NOTED", 10)
    monkeypatch.setattr(unsynced, "_noted", {})
    for number in range(100):
        fs.make_directories(f"{tmp_path}/{number}", str(tmp_path))
    assert len(unsynced._noted) <= 10


def test_directory_that_vanished_is_reported(tmp_path):
    directory = tmp_path / "h"
    directory.mkdir()
    new = fs.create_file(str(directory))
    directory.rmdir()
    with pytest.raises(FileNotFoundError):
        fs.link_durably(new, f"{directory}/f")
    new.discard()


def test_link_syncs_every_directory_that_changed(tmp_path, monkeypatch):
    trace = FaultyOs()
    trace.install(monkeypatch)
    made = fs.make_directories(f"{tmp_path}/a/b", str(tmp_path))
    new = fs.create_file(f"{tmp_path}/a/b")
    fs.write_all(new.fd, b"x")
    fs.sync_file(new.fd)
    fs.link_durably(new, f"{tmp_path}/a/b/f", made)
    names = [name for name, _ in trace.calls if name != "mkdir"]
    assert names == ["open", "write", "fsync", "link", "fsync", "fsync", "fsync"]
    new.discard()


def test_replaced_file_is_old_or_new_at_every_crash(tmp_path, monkeypatch):
    path = f"{tmp_path}/f"
    for step in range(1, 20):
        with open(path, "wb") as file:
            file.write(b"old")
        faults = FaultyOs(crash_at=step)
        faults.install(monkeypatch)
        try:
            fs.replace_file(path, b"new content")
        except Crash:
            assert fs.read_file(path) in (b"old", b"new content")
        else:
            assert fs.read_file(path) == b"new content"
            break
    else:
        pytest.fail("never ended")
    assert step > 4


def test_replacing_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    path = f"{tmp_path}/f"
    for step in (2, 3, 4):
        FaultyOs(fail_at=step, error=errno.ENOSPC).install(monkeypatch)
        with pytest.raises(DeviceFull):
            fs.replace_file(path, b"new")
        assert os.listdir(tmp_path) == []


def test_append_truncate_and_remove(tmp_path):
    path = f"{tmp_path}/f"
    fs.append(path, b"a\n")
    fs.append(path, b"b\n")
    assert fs.read_file(path) == b"a\nb\n"
    fs.truncate(path)
    assert fs.read_file(path) == b""
    assert fs.remove_file(path) and not fs.remove_file(path)
    fs.truncate(path)
    assert fs.read_file(path) is None
    fs.append(path, b"12345")
    with pytest.raises(ValueError):
        fs.read_file(path, 4)


def test_directory_is_removed_only_when_empty(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("")
    assert not fs.remove_directory(f"{tmp_path}/d")
    os.unlink(tmp_path / "d" / "f")
    assert fs.remove_directory(f"{tmp_path}/d") and fs.remove_directory(f"{tmp_path}/d")


def test_rename_and_second_link(tmp_path):
    (tmp_path / "a").write_text("x")
    (tmp_path / "d").mkdir()
    fs.rename_durably(f"{tmp_path}/a", f"{tmp_path}/d/b")
    fs.link_existing(f"{tmp_path}/d/b", f"{tmp_path}/e/f/b", str(tmp_path))
    fs.link_existing(f"{tmp_path}/d/b", f"{tmp_path}/e/f/b", str(tmp_path))
    assert os.stat(f"{tmp_path}/e/f/b").st_nlink == 2


def test_quarantine_moves_whole_and_never_overwrites(tmp_path):
    into = f"{tmp_path}/quarantined/objects"
    seen = set()
    for text in ("one", "two", "three"):
        (tmp_path / "hash").mkdir()
        (tmp_path / "hash" / "f").write_text(text)
        target = fs.quarantine(f"{tmp_path}/hash", into)
        with open(f"{target}/f") as file:
            assert file.read() == text
        seen.add(target)
    (tmp_path / "hash").write_text("a file where a directory should be")
    seen.add(fs.quarantine(f"{tmp_path}/hash", into))
    assert len(seen) == 4 and f"{into}/hash" in seen
    assert sum(name.startswith("hash-") and len(name) == 37 for name in os.listdir(into)) == 3
    with pytest.raises(FileNotFoundError):
        fs.quarantine(f"{tmp_path}/hash", into)
    with pytest.raises(FileNotFoundError):
        fs.quarantine(f"{tmp_path}/gone/objects/7", f"{tmp_path}/gone/quarantined/objects")
    assert not os.path.exists(f"{tmp_path}/gone")


def test_quarantined_file_does_not_replace_another(tmp_path):
    for text in ("one", "two"):
        (tmp_path / "f").write_text(text)
        fs.quarantine(f"{tmp_path}/f", f"{tmp_path}/q")
    assert len(os.listdir(tmp_path / "q")) == 2


# -- extended attributes


def test_attributes_are_set_read_and_removed(tmp_path):
    path = f"{tmp_path}/f"
    with open(path, "wb"):
        pass
    assert fs.get_xattr(path, "user.a") is None
    fs.set_xattr(path, "user.a", b"\x00value")
    assert fs.get_xattr(path, "user.a") == b"\x00value" and fs.list_xattrs(path) == ["user.a"]
    fs.remove_xattr(path, "user.a")
    fs.remove_xattr(path, "user.a")
    assert fs.get_xattr(path, "user.a") is None
    with pytest.raises(FileNotFoundError):
        fs.get_xattr(f"{tmp_path}/absent", "user.a")


def test_attribute_that_does_not_fit_is_a_full_device(tmp_path):
    path = f"{tmp_path}/f"
    with open(path, "wb"):
        pass
    with pytest.raises(DeviceFull):
        fs.set_xattr(path, "user.a", b"x" * 70000)


def test_file_system_without_attributes_is_named():
    with pytest.raises(XattrNotSupported):
        fs.set_xattr("/proc/self/status", "user.a", b"x")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_full_device_has_one_error(tmp_path, monkeypatch, error):
    new = fs.create_file(str(tmp_path))
    for call in (
        lambda: fs.write_all(new.fd, b"x"), lambda: fs.set_xattr(new.fd, "user.a", b"x"), lambda: fs.sync_file(new.fd),
        lambda: fs.sync_data(new.fd), lambda: fs.make_directories(f"{tmp_path}/x", str(tmp_path)), lambda: fs.create_file(str(tmp_path)),
        lambda: fs.link_durably(new, f"{tmp_path}/f"), lambda: fs.replace_file(f"{tmp_path}/g", b"x"),
    ):  # fmt: skip
        FaultyOs(fail_at=1, error=error).install(monkeypatch)
        with pytest.raises(DeviceFull):
            call()
    monkeypatch.setattr(fs, "os", os)
    new.discard()


def test_a_device_that_is_full_when_an_appended_line_is_synced(tmp_path, monkeypatch):
    for number in range(1, 9):
        faults = FaultyOs(fail_at=number, error=errno.ENOSPC)
        with monkeypatch.context() as patch:
            faults.install(patch)
            try:
                fs.append(f"{tmp_path}/f{number}", b"a\n", b"#head\n")
                break
            except DeviceFull:
                continue
    assert number > 4, "it was opened, written and synced, and its directory, too"


def test_pause_waits_on_either_kind_of_thread():
    started = time.monotonic()
    disk_calls.pause(0.001)
    disk_calls.on_disk_thread("pause-test", disk_calls.pause, 0.001)
    assert time.monotonic() - started >= 0.002
    assert threading.active_count() >= 1


def test_pieces_are_written_in_order_however_little_the_file_takes_at_once(tmp_path, monkeypatch):
    pieces = [b"", b"abc", b"", b"defgh", b"i", b""] * 700
    real = os.writev
    for most in (1, 4, 5, 1 << 20):
        monkeypatch.setattr(os, "writev", lambda fd, some, most=most: real(fd, [b"".join(some)[:most]]))
        with open(tmp_path / f"f{most}", "wb") as file:
            fs.write_pieces(file.fileno(), pieces)
        assert (tmp_path / f"f{most}").read_bytes() == b"".join(pieces)


def aligned_memory(data: bytes) -> memoryview:
    memory = mmap.mmap(-1, max(len(data), 1))
    memory[: len(data)] = data
    return memoryview(memory)[: len(data)]


@pytest.mark.parametrize("sizes", [(8192, 4096), (8192, 5000), (100,), (8192, 100, 4096, 4096), (0, 4096)])
@pytest.mark.parametrize("is_aligned", [True, False])
def test_what_is_written_past_the_cache_is_in_the_file(tmp_path, sizes, is_aligned):
    """Whatever this file system makes of it."""
    with open(tmp_path / "f", "wb", buffering=0) as file:
        goes_on = fs.set_direct(file.fileno(), True)
        for number, size in enumerate(sizes):
            data = bytes([number + 1]) * size
            if goes_on:
                goes_on = fs.write_direct(file.fileno(), aligned_memory(data) if is_aligned else memoryview(b"x" + data)[1:])
            else:
                fs.write_all(file.fileno(), data)
    assert (tmp_path / "f").read_bytes() == b"".join(bytes([number + 1]) * size for number, size in enumerate(sizes))


def test_a_file_system_that_knows_no_direct_writes_says_so(tmp_path, monkeypatch):
    def refuse(fd, command, flags=0):
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return 0

    monkeypatch.setattr(fs.fcntl, "fcntl", refuse)
    with open(tmp_path / "f", "wb") as file:
        assert not fs.set_direct(file.fileno(), True)


@pytest.mark.parametrize(("error", "expected"), [(errno.ENOSPC, DeviceFull), (errno.EIO, OSError)])
def test_what_a_device_says_of_a_direct_write_is_told(tmp_path, monkeypatch, error, expected):
    with open(tmp_path / "f", "wb") as file:
        FaultyOs(fail_at=1, error=error).install(monkeypatch)
        with pytest.raises(expected):
            fs.write_direct(file.fileno(), aligned_memory(bytes(8192)))


def test_a_file_that_takes_little_at_once_takes_all_in_the_end(tmp_path, monkeypatch):
    data, real = os.urandom(3 * 8192), os.write
    for most in (4096, 5000, 1):
        with open(tmp_path / "f", "wb", buffering=0) as file:
            fs.set_direct(file.fileno(), False)
            monkeypatch.setattr(os, "write", lambda fd, some, most=most: real(fd, some[:most]))
            assert fs.write_direct(file.fileno(), data) is (most == 4096)
            monkeypatch.setattr(os, "write", real)
        assert (tmp_path / "f").read_bytes() == data


def test_a_discarded_file_is_gone_with_and_without_green_threads(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"x" * 5000)

    def discard():
        fs.sync_directory(str(tmp_path))  # after which there is a queue
        return fs.discard_file(str(tmp_path / "a")), fs.discard_file(str(tmp_path / "a"))

    assert concurrency.spawn(discard).wait() == (True, False)
    assert disk_calls.on_disk_thread("discard-test", fs.discard_file, str(tmp_path / "b"))
    assert fs.discard_file(str(tmp_path / "c")) and not fs.discard_file(str(tmp_path / "c"))
    assert os.listdir(tmp_path) == []
    concurrency.spawn(fs.sync_directory, str(tmp_path)).wait()
    assert not [path for path in map(held, os.listdir("/proc/self/fd")) if path.startswith(str(tmp_path))]


def held(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:  # that of the listing itself
        return ""
