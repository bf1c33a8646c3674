"""The file system: devices, room, locks, extended attributes and the verbs that make a change survive a crash.

Sole importer of extended attribute calls; every call that changes a disk goes through here, so that a test can fail
or stop at each one in turn.

The durable order, and what a crash between any two lines leaves behind:

1. ``make_directories``: empty directories. The next write uses them, and syncs them as its own (``sync_above``), as the write
   that made them may not have come to that, or never will; a replicator removes them.
2. ``create_file``: a file without a name (O_TMPFILE), which the kernel frees; in the fallback a file in the device's ``tmp``.
3. write, ``set_xattr``, ``sync_file``: as 2. From here on content and attributes are on disk, still without a name. With
   ``sync_file_and_above`` the new directories are, too; without the file that is to be in them they are as after 1.
4. ``link_durably``: links, then syncs the directory that got the name, and with it every directory above that got a new
   entry and was not synced since. A crash before these syncs leaves either nothing or the whole file, never a torn one: the
   name can only reach the disk after the content did.
5. Only then is the caller told, and older files may be unlinked; a crash before that leaves old and new side by side, and the
   rules of ``obj/fileset.py`` pick the new one.

Errors: ENOSPC and EDQUOT become DeviceFull, a file system without extended attributes XattrNotSupported; all else
stays an OSError. Functions block, but for the syncs, which let other green threads run: call them through
``disk_calls.on_disk``, or on a disk thread where more than syncs may take long.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import random
import string
import sys
import uuid
from collections.abc import Generator, Iterable, Sequence
from typing import Protocol

from keelstore.common import unsynced
from keelstore.common.errors import DeviceFull, DeviceUnavailable, XattrNotSupported

MAX_NAME = 255  # bytes of one path component
_IOV_MAX = 1024  # pieces of one writev
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_XATTR = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP})
_NO_TMPFILE = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})

# -- power -------------------------------------------------------------------------------------------------------------

_boot_id = ""


def boot_id() -> str:
    """Another one after each start of the machine: what had not been synced before may be gone."""
    global _boot_id
    if not _boot_id:
        try:
            _boot_id = (read_file("/proc/sys/kernel/random/boot_id") or b"").decode("ascii").strip()
        except (OSError, ValueError):
            pass
        _boot_id = _boot_id or str(uuid.uuid4())  # not known: to be on the safe side, another one for each process
    return _boot_id


# -- durable verbs -----------------------------------------------------------------------------------------------------


def _sync(fds: Sequence[int], data_only: bool = False) -> None:
    """fsync or fdatasync of all, in any order; green threads let others run meanwhile. Operators' tools, which have none,
    simply wait.
    """
    green = sys.modules.get("keelstore.common.disk_calls")
    for fd in fds if green is None else green.sync(fds, data_only):
        (os.fdatasync if data_only else os.fsync)(fd)


Steps = Generator[Sequence[int], None, None]
"""A change that stops where it has to wait, and gives the open files to be synced there; none: it waits for something else,
and does so when it goes on. What the sync raises is to be thrown into it. So several can share their waits
(``disk_steps.py``); :func:`carry_out` does one alone.
"""


def carry_out(steps: Generator[Sequence[int], None, object]) -> None:
    """A change to its end, waiting here."""
    try:
        fds = next(steps)
        while True:
            try:
                if fds:
                    _sync(fds)
            except BaseException as error:
                fds = steps.throw(error)
            else:
                fds = next(steps)
    except StopIteration:
        pass


def sync_directory(path: str) -> None:
    """The names in ``path`` are on disk when this returns."""
    carry_out(syncing_directories((path,)))


def syncing_directories(paths: Iterable[str], *others: int) -> Steps:
    """The names in ``paths``, and ``others``, which are open, are on disk when this has ended; in any order."""
    fds: list[int] = []
    try:
        for path in paths:
            fds.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        yield (*others, *fds)
    finally:
        for fd in fds:
            os.close(fd)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syncfs.argtypes = [ctypes.c_int]


def sync_device(path: str) -> None:
    """All that was done to the file system of ``path`` until now is on disk when this returns.

    One call in place of a sync of each of thousands of directories; it blocks for as long as the device takes to write
    what others have written, too.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise translated(OSError(code, os.strerror(code), path))
    finally:
        os.close(fd)


def sync_files(fds: Sequence[int]) -> None:
    """Content and attributes of open files, and names in open directories, are on disk when this returns."""
    _sync(fds)


def sync_file(fd: int) -> None:
    """Content and attributes of an open file are on disk when this returns. Raises DeviceFull."""
    try:
        _sync((fd,))
    except OSError as error:
        raise translated(error) from None


def sync_data(fd: int) -> None:
    """The content of an open file is on disk when this returns. Raises DeviceFull."""
    try:
        _sync((fd,), data_only=True)
    except OSError as error:
        raise translated(error) from None


def translated(error: OSError) -> Exception:
    """DeviceFull for ENOSPC and EDQUOT, else the error itself."""
    return DeviceFull(error.strerror or "") if error.errno in _FULL else error


def make_directories(path: str, device_path: str) -> tuple[str, ...]:
    """Create ``path`` with its parents. Gives the directories that got a new entry, innermost first, for the caller
    to sync (:func:`sync_above`, which :func:`link_durably` calls); nothing when ``path`` was there. Raises
    NotADirectoryError, DeviceFull.

    ``device_path``: the device that it is on, which is never made: one that went away must not come back as a directory
    of the disk below. Raises DeviceUnavailable.
    """
    if path == device_path:
        if os.path.isdir(path):
            return ()
        raise DeviceUnavailable(os.path.basename(path))
    number, before = unsynced.note(path)
    try:
        os.mkdir(path, 0o755)
        return (path.rpartition("/")[0],)
    except FileExistsError:
        unsynced.forget(path, number, before)
        return ()
    except FileNotFoundError:
        unsynced.forget(path, number, before)
    except OSError as error:
        unsynced.forget(path, number, before)
        raise translated(error) from None
    above = make_directories(path.rpartition("/")[0], device_path)
    return make_directories(path, device_path) + above


def sync_above(directory: str, made: Iterable[str] = ()) -> None:
    """Have the name of ``directory``, and those of the directories that it is in, on disk. ``made``: what
    :func:`make_directories` gave. What was made before, by a write that did not come to its end, is not on disk for that; nor
    what is being made beside us.
    """
    carry_out(syncing_above(directory, made))


def syncing_above(directory: str, made: Iterable[str], *others: int) -> Steps:
    """:func:`sync_above`. ``others``: open files and directories that are synced with them, in any order."""
    noted = unsynced.at_or_above(directory)
    if noted or made:
        paths = dict.fromkeys([*made, *(path.rpartition("/")[0] for path, _ in noted)])
        yield from syncing_directories(paths, *others)
        for path, number in noted:
            unsynced.forget(path, number)
    elif others:
        yield others


def syncing_file_and_above(fd: int, directory: str, made: Iterable[str]) -> Steps:
    """:func:`sync_file`, and :func:`sync_above` where directories were ``made``, at once, for a file that has no name yet.
    Raises DeviceFull, FileNotFoundError when one of ``made`` is gone.
    """
    try:
        if made:
            yield from syncing_above(directory, made, fd)
        else:
            yield (fd,)
    except OSError as error:
        raise translated(error) from None


class NewFile:
    """A file being written that has no final name yet. ``path`` is '' when it has none at all (O_TMPFILE).

    Discards itself when the last who knows it lets go: a waiter that is stopped cannot close what a disk thread still uses.
    """

    __slots__ = ("fd", "path")

    def __init__(self, fd: int, path: str):
        self.fd, self.path = fd, path

    def discard(self) -> None:
        """Close it, and remove what is left of it. Safe to call again, and after it was linked (``path`` is then '')."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)
        if self.path:
            path, self.path = self.path, ""
            remove_file(path)

    def __del__(self) -> None:
        try:
            self.discard()
        except OSError:
            pass


_tmpfile_works = True
_LETTERS = string.ascii_letters + string.digits


def _temporary_name(name: str) -> str:
    """A name that everybody's cleaners take for an interrupted rsync's: ``.<name>.<six letters>``."""
    return f".{name[:MAX_NAME - 8]}.{''.join(random.choices(_LETTERS, k=6))}"


def create_file(directory: str, fallback_directory: str = "", device_path: str = "") -> NewFile:
    """A new file for :func:`link_durably` into ``directory``, which exists, or into another of the same device.

    Where the file system has no O_TMPFILE the file gets a temporary name in ``fallback_directory`` (created if missing
    below ``device_path``; default ``directory``), for the life of the process. Raises DeviceFull, DeviceUnavailable.
    """
    global _tmpfile_works
    try:
        if _tmpfile_works:
            try:
                return NewFile(os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o644), "")
            except OSError as error:
                if error.errno not in _NO_TMPFILE:
                    raise
                _tmpfile_works = False
        where = fallback_directory or directory
        if fallback_directory:
            make_directories(fallback_directory, device_path)
        while True:
            path = f"{where}/{_temporary_name('new')}"
            try:
                return NewFile(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644), path)
            except FileExistsError:
                continue
    except OSError as error:
        raise translated(error) from None


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Raises DeviceFull, OSError."""
    try:
        written = os.write(fd, data)
        while written < len(data):
            data = memoryview(data)[written:]
            written = os.write(fd, data)
    except OSError as error:
        raise translated(error) from None


def write_pieces(fd: int, pieces: Sequence[bytes | memoryview]) -> None:
    """All of them, in one call where the file takes it. Raises DeviceFull, OSError."""
    for first in range(0, len(pieces), _IOV_MAX):
        some = pieces[first : first + _IOV_MAX]
        try:
            written = os.writev(fd, some)
        except OSError as error:
            raise translated(error) from None
        for piece in some:  # a file takes less when its device is full, or an error lies ahead
            if written < len(piece):
                write_all(fd, memoryview(piece)[written:])
                written = 0
            else:
                written -= len(piece)


DIRECT_UNIT = 4096  # bytes: what is written past the page cache begins and ends at multiples of it


def set_direct(fd: int, is_direct: bool) -> bool:
    """Have an open file written past the page cache, or by it again. False: this file system does not do that."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if is_direct else flags & ~os.O_DIRECT)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        return False
    return True


def write_direct(fd: int, data: bytes | memoryview) -> bool:
    """Write all of ``data`` to a file for which :func:`set_direct` was true, past the page cache as far as that goes: memory,
    position and length have to be aligned. False: the file is written by the cache from now on. Raises DeviceFull, OSError.
    """
    at, whole = 0, len(data) & -DIRECT_UNIT
    view = memoryview(data)
    try:
        while at < whole:
            at += os.write(fd, view[at:whole])
            if at % DIRECT_UNIT:
                break
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise translated(error) from None
    if at == len(data):
        return True
    set_direct(fd, False)
    write_all(fd, view[at:])
    return False


class Around(Protocol):
    """What is done around a change for as long as it takes: a lock, a note."""

    def entering(self) -> Steps:
        """Begin it."""

    def __exit__(self, *args: object) -> None:
        """End it; once it has been begun whole."""


def link_durably(new: NewFile, target: str, made: Iterable[str] = ()) -> None:
    """Give a synced file its name, replacing what has it, and sync the directories concerned.

    ``made``: what :func:`make_directories` gave. Raises FileNotFoundError when the directory is gone (nothing happened).
    """
    carry_out(linking(new, target, made))


def linking(new: NewFile, target: str, made: Iterable[str] = (), around: Around | None = None) -> Steps:
    """:func:`link_durably`. ``around``: begun for the moment in which the name appears, ended before it is safe."""
    directory, _, name = target.rpartition("/")
    fd = -1
    try:
        if around is not None:
            yield from around.entering()
        try:  # the directory is opened inside: before, it might be moved away meanwhile
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if new.path:
                os.rename(new.path, target)
                new.path = ""
            else:
                _link(new.fd, name, fd)
        finally:
            if around is not None:
                around.__exit__()
        yield from syncing_above(directory, made, fd)
    except OSError as error:
        raise translated(error) from None
    finally:
        if fd >= 0:
            os.close(fd)


def _link(fd: int, name: str, directory_fd: int) -> None:
    source = f"/proc/self/fd/{fd}"  # with AT_SYMLINK_FOLLOW, which os.link uses when a directory is given
    try:
        os.link(source, name, dst_dir_fd=directory_fd)
        return
    except FileExistsError:
        pass
    temporary = _temporary_name(name)  # replaced by rename, so that at no time the name is missing
    os.link(source, temporary, dst_dir_fd=directory_fd)
    try:
        os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except OSError:
        os.unlink(temporary, dir_fd=directory_fd)
        raise


def rename_durably(source: str, target: str) -> None:
    """Rename within a device, replacing ``target``, and sync the directories on both sides."""
    os.rename(source, target)
    directory = os.path.dirname(target)
    sync_directory(directory)
    if os.path.dirname(source) != directory:
        sync_directory(os.path.dirname(source))


def link_unsynced(new: NewFile, target: str) -> None:
    """As :func:`link_durably` for a file whose directory the caller syncs, with the name of another file, afterwards."""
    if new.path:
        os.rename(new.path, target)
        new.path = ""
        return
    fd = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _link(new.fd, os.path.basename(target), fd)
    except OSError as error:
        raise translated(error) from None
    finally:
        os.close(fd)


_LINK_ATTEMPTS = 3  # in a directory that a cleaner removes meanwhile, as it is empty


def link_existing(source: str, target: str, device_path: str) -> None:
    """A second name for a file, durably; its directories are made. Nothing to do when ``target`` is there. Raises
    FileNotFoundError when ``source`` is gone, DeviceUnavailable when the device of both is, DeviceFull.
    """
    made = _link_again(source, target, device_path)
    if made is not None:
        sync_directory(os.path.dirname(target))
        sync_above(os.path.dirname(target), made)


def link_existing_unsynced(source: str, target: str, device_path: str) -> bool:
    """As :func:`link_existing`, for many files that one :func:`sync_device` makes durable. False: ``target`` is there."""
    return _link_again(source, target, device_path) is not None


def _link_again(source: str, target: str, device_path: str) -> tuple[str, ...] | None:
    """The directories that were made for it; None when ``target`` is there."""
    made: tuple[str, ...] = ()
    for left in reversed(range(_LINK_ATTEMPTS)):
        try:
            os.link(source, target)
            return made
        except FileExistsError:
            return None
        except FileNotFoundError:
            if not left or not os.path.lexists(source):
                raise
            made += make_directories(os.path.dirname(target), device_path)
        except OSError as error:
            raise translated(error) from None
    return None


def replace_file(path: str, data: bytes, mode: int = 0o644, is_durable: bool = True, temporary: str = "") -> None:
    """Readers of ``path`` see the old content or all of ``data``, also after a crash.

    ``is_durable=False`` leaves out the syncs: after a power failure the file may then be empty. For caches that are
    checked when read. ``temporary``: the name to write under, where only one writes at a time. Raises DeviceFull, OSError.
    """
    directory, name = os.path.split(path)
    if temporary:
        temporary = f"{directory}/{temporary}"
        remove_file(temporary)  # of a writer that did not get to its end
    else:
        temporary = f"{directory}/{_temporary_name(name)}"
    try:
        fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
        try:
            try:
                write_all(fd, data)
                if is_durable:
                    _sync((fd,))
            finally:
                os.close(fd)
            os.rename(temporary, path)
        except BaseException:
            remove_file(temporary)
            raise
        if is_durable:
            sync_directory(directory)
    except OSError as error:
        raise translated(error) from None


def append(path: str, data: bytes, head: bytes = b"") -> None:
    """Add to the end of a file, creating it. One write, so that lines of two writers do not mix.

    Not synced; but with ``head`` a file that was empty begins with that, and is synced, its name too. Raises DeviceFull,
    OSError.
    """
    carry_out(appending(path, data, head))


def appending(path: str, data: bytes, head: bytes = b"") -> Generator[Sequence[int], None, int]:
    """:func:`append`. How long the file was."""
    is_new, size = False, 0
    try:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            fd, is_new = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644), True
        try:
            if not is_new:
                size = os.lseek(fd, 0, os.SEEK_END)
            if head and not size:
                write_all(fd, head + data)
                if is_new:  # one wait for both: a line is as good as none, and its file without it, too
                    yield from syncing_directories((path.rpartition("/")[0],), fd)
                else:
                    yield (fd,)
            else:
                write_all(fd, data)
        finally:
            os.close(fd)
    except OSError as error:
        raise translated(error) from None
    return size


def truncate(path: str) -> None:
    """Make a file empty, if it is there; not synced."""
    try:
        os.truncate(path, 0)
    except FileNotFoundError:
        pass


def read_open(fd: int) -> bytes:
    """All that an open file holds."""
    return _read_all(fd, os.fstat(fd).st_size)


def _read_all(fd: int, size: int) -> bytes:
    """``size``: what its status says."""
    parts, at = [], 0
    while part := os.pread(fd, max(size, 4096), at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def remove_file(path: str) -> bool:
    """Unlink a file; False when it was not there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def discard_file(path: str) -> bool:
    """Unlink a file that holds data; False when it was not there. Where green threads run its blocks are
    freed beside them: that can wait for the disk, and takes the longer the larger the file is.
    """
    green = sys.modules.get("keelstore.common.disk_calls")
    if green is None or not green.lets_go():
        return remove_file(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return remove_file(path)
    try:
        return remove_file(path)
    finally:
        green.let_go(fd)


def remove_directory(path: str) -> bool:
    """Remove an empty directory; True when it is gone, False when it holds something."""
    number = unsynced.number_of(path)
    try:
        os.rmdir(path)
        if number is not None:
            unsynced.forget(path, number)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def read_file(path: str, limit: int = 64 << 20) -> bytes | None:
    """The content of a small file, None when it is missing. Raises ValueError beyond ``limit`` bytes, OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(fd).st_size
        if size > limit:
            raise ValueError(f"{path}: {size} bytes is more than expected")
        return _read_all(fd, size)
    finally:
        os.close(fd)


def quarantine(path: str, into: str) -> str:
    """Move a file or directory, whole, to ``into`` under its own name, or with ``-<uuid hex>`` when that is taken.

    ``into`` is ``<device>/quarantined/<datadir>`` and is created. Gives the new path. Raises FileNotFoundError when
    ``path`` is gone already, DeviceUnavailable when its device is.
    """
    os.lstat(path)  # before anything is made: its device may have gone away
    made = make_directories(into, os.path.dirname(os.path.dirname(into)))
    target = f"{into}/{os.path.basename(path)}"
    try:
        if not os.path.isdir(path) and os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "taken", target)  # rename would replace a file
        os.rename(path, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR, errno.ENOTDIR):
            raise
        target = f"{target}-{uuid.uuid4().hex}"
        os.rename(path, target)
    sync_directory(into)
    sync_directory(os.path.dirname(path))
    for directory in made:
        sync_directory(directory)
    return target


# -- extended attributes -----------------------------------------------------------------------------------------------


def get_xattr(target: int | str, name: str) -> bytes | None:
    """The value, or None when there is none. Raises XattrNotSupported, OSError."""
    try:
        return os.getxattr(target, name)
    except OSError as error:
        if error.errno == errno.ENODATA:
            return None
        if error.errno in _NO_XATTR:
            raise XattrNotSupported(f"{target}: no extended attributes here") from None
        raise


def set_xattr(target: int | str, name: str, value: bytes) -> None:
    """Raises XattrNotSupported; DeviceFull when the value does not fit the device *or the file's attribute block*."""
    try:
        os.setxattr(target, name, value)
    except OSError as error:
        if error.errno in _NO_XATTR:
            raise XattrNotSupported(f"{target}: no extended attributes here") from None
        if error.errno in (errno.E2BIG, errno.ERANGE):
            raise DeviceFull(error.strerror) from None
        raise translated(error) from None


def remove_xattr(target: int | str, name: str) -> None:
    """Nothing to do when it is not there. Raises XattrNotSupported, OSError."""
    try:
        os.removexattr(target, name)
    except OSError as error:
        if error.errno in _NO_XATTR:
            raise XattrNotSupported(f"{target}: no extended attributes here") from None
        if error.errno != errno.ENODATA:
            raise


def list_xattrs(target: int | str) -> list[str]:
    return os.listxattr(target)
