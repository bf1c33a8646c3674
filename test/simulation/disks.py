"""What a crash leaves of the devices of a node, and devices that are full.

The functions of ``os`` that change a file system are wrapped. Everything happens at once on a real file system in memory; what
was not synced is noted, with how to undo it. A crash undoes it: in each directory all that came after some moment since its
last sync, of a file whose content was not synced any part of it. So a name is safe when its directory was synced after it got
there, a directory when its parent was, a rename when either side was. What is older than WRITTEN_BACK_S was written back by the
kernel, synced or not.

Contents of databases are not looked at: SQLite syncs them, and ``databases`` crashes before or after its commits.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from keelstore.common import fs
from test.simulation import lives, worldtime

WRITTEN_BACK_S = 30.0
QUEUE = ".pending"
real = SimpleNamespace(**{name: getattr(os, name) for name in (
    "open", "write", "fsync", "fdatasync", "link", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "truncate",
    "ftruncate", "setxattr", "removexattr", "statvfs", "fstatvfs", "fstat", "stat", "utime", "listdir", "urandom", "getpid")})

root = "\0"  # of the devices: <root><node>/<device>
disks: dict[str, Disk] = {}
_files: dict[int, File] = {}


class Change:
    """Something that a crash may undo. ``directories``: a sync of any of them makes it safe."""

    __slots__ = ("at", "directories", "grave", "is_queue", "undo")

    def __init__(self, directories: tuple[str, ...], undo: Callable[[], None], grave: str = "", is_queue: bool = False):
        self.directories, self.undo, self.grave, self.is_queue = directories, undo, grave, is_queue
        self.at = worldtime.elapsed_s()


class File:
    """An open file or directory of a device."""

    __slots__ = ("device", "disk", "inode", "is_directory", "path")

    def __init__(self, disk: Disk, device: str, path: str, inode: int, is_directory: bool):
        self.disk, self.device, self.path, self.inode, self.is_directory = disk, device, path, inode, is_directory


class Dirty:
    """Content that is not synced: ``size`` bytes of it are, or were when it was opened."""

    __slots__ = ("at", "path", "size")

    def __init__(self, path: str, size: int):
        self.path, self.size, self.at = path, size, worldtime.elapsed_s()


class Disk:
    """The devices of one node."""

    def __init__(self, node: int, chance: random.Random, graveyard: str, crash: Callable[[int], None]):
        self.node, self._chance, self._graveyard, self._crash = node, chance, graveyard, crash
        self.changes: list[Change] = []
        self.dirty: dict[int, Dirty] = {}
        self.crash_in = 0  # at this step from now; 0: not
        self.steps = self.boots = 0
        self.full: dict[str, str] = {}  # device: "reserve" (only the reserve is left) or "hard"
        self._graves = 0
        real.mkdir(graveyard)

    # -- what happens --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Before each durable step. Raises Crash."""
        lives.check()
        if lives.current() is None:
            return
        self.steps += 1
        if self.crash_in:
            self.crash_in -= 1
            if not self.crash_in:
                self._crash(self.node)
                raise lives.Crash

    def room(self, device: str) -> None:
        """Raises OSError on a device without any."""
        if self.full.get(device) == "hard":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def bury(self, path: str) -> str:
        """Keep what is about to lose its name."""
        self._graves += 1
        grave = f"{self._graveyard}/{self._graves}"
        try:
            real.link(path, grave, follow_symlinks=False)
        except OSError:
            return ""
        return grave

    def note(self, directories: tuple[str, ...], undo: Callable[[], None], grave: str = "", is_queue: bool = False) -> None:
        changes = self.changes
        if changes and len(changes) > 64:
            self._write_back()
        changes.append(Change(directories, undo, grave, is_queue))

    def _write_back(self) -> None:
        old = worldtime.elapsed_s() - WRITTEN_BACK_S
        kept = []
        for change in self.changes:
            if change.at < old:
                self._settle(change)
            else:
                kept.append(change)
        self.changes[:] = kept
        self.dirty = {inode: dirty for inode, dirty in self.dirty.items() if dirty.at >= old}

    def _settle(self, change: Change) -> None:
        if change.grave:
            real.unlink(change.grave)

    def sync(self, file: File) -> None:
        if not file.is_directory:
            self.dirty.pop(file.inode, None)
            return
        path = file.path
        kept = []
        for change in self.changes:
            if path in change.directories:
                self._settle(change)
            else:
                kept.append(change)
        self.changes[:] = kept

    def grow(self, file: File, size: int | None = None) -> None:
        if file.inode not in self.dirty:
            self.dirty[file.inode] = Dirty(file.path, real.stat(file.path).st_size if size is None and file.path else size or 0)

    # -- the crash -----------------------------------------------------------------------------------------------------

    def lose_power(self, keeps_queue: bool) -> None:
        """Undo what was not safe. ``keeps_queue``: but for rows that wait beside a database, which are never synced; see
        doc/design/simulation.
        """
        self._write_back()
        self.crash_in = 0
        self.boots += 1
        chance = self._chance
        kept: dict[str, float] = {}  # directory: what changed in it up to this moment had reached the disk
        began = worldtime.elapsed_s() - WRITTEN_BACK_S

        def is_lost(change: Change) -> bool:
            directory = change.directories[0]
            if directory not in kept:
                all_lost, none_lost, moment = chance.random() < 0.5, chance.random() < 0.4, chance.random()
                kept[directory] = (began if all_lost else worldtime.elapsed_s() if none_lost
                                   else began + moment * WRITTEN_BACK_S)
            return change.at > kept[directory]

        lost = [change for change in self.changes if not (keeps_queue and change.is_queue) and is_lost(change)]
        for change in reversed(lost):
            try:
                change.undo()
            except OSError:
                pass  # its directory is gone with another change
        for change in self.changes:
            if change.grave and os.path.lexists(change.grave):
                real.unlink(change.grave)
        self.changes.clear()
        for inode, dirty in self.dirty.items():
            try:
                status = real.stat(dirty.path)
            except OSError:
                continue
            if status.st_ino == inode and status.st_size > dirty.size and not (keeps_queue and dirty.path.endswith(QUEUE)):
                real.truncate(dirty.path, chance.choice((dirty.size, chance.randint(dirty.size, status.st_size))))
        self.dirty.clear()


# -- the functions of os -----------------------------------------------------------------------------------------------


def disk_of(path: Any) -> Disk | None:
    if type(path) is str and path.startswith(root):
        return disks.get(path[len(root)])
    return None


def device_of(path: str) -> str:
    return path[len(root) + 2:].split("/", 1)[0]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _absolute(path: str, directory_fd: int | None) -> str:
    if directory_fd is None or path.startswith("/"):
        return path
    return f"{_files[directory_fd].path}/{path}" if directory_fd in _files else path


def _open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    disk = disk_of(path)
    if disk is None:
        fd: int = real.open(path, flags, mode, dir_fd=dir_fd)
        _files.pop(fd, None)
        return fd
    is_nameless = flags & os.O_TMPFILE == os.O_TMPFILE
    is_new = is_nameless or bool(flags & os.O_CREAT and not os.path.exists(path))
    device = device_of(path)
    if is_new:
        if path.rpartition("/")[2].startswith(".lock"):
            lives.check()
        else:
            disk.step()
            disk.room(device)
    fd = real.open(path, flags, mode)
    if is_new or flags & (os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY):
        file = _files[fd] = File(disk, device, "" if is_nameless else path, real.fstat(fd).st_ino,
                                 bool(flags & os.O_DIRECTORY) and not is_nameless)
        if is_new and not path.rpartition("/")[2].startswith(".lock"):
            disk.grow(file, 0)
            if not is_nameless:
                disk.note((_parent(path),), lambda: real.unlink(path), is_queue=path.endswith(QUEUE))
    else:
        _files.pop(fd, None)
    return fd


def _write(fd: int, data: Any) -> int:
    file = _files.get(fd)
    if file is not None:
        file.disk.step()
        if data:
            file.disk.room(file.device)
        file.disk.grow(file)
    done: int = real.write(fd, data)
    if file is not None:
        now = worldtime.stamp_ns()
        real.utime(fd, ns=(now, now))
    return done


def _fsync(fd: int) -> None:
    file = _files.get(fd)
    if file is None:
        real.fsync(fd)
    else:
        file.disk.step()
        file.disk.sync(file)


def _link(source: str, target: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None,
          follow_symlinks: bool = True) -> None:
    path = _absolute(target, dst_dir_fd)
    disk = disk_of(path)
    if disk is None:
        real.link(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)
        return
    disk.step()
    disk.room(device_of(path))
    real.link(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)
    if source.startswith("/proc/self/fd/"):
        file = _files.get(int(source.rpartition("/")[2]))
        if file is not None and file.inode in disk.dirty:
            disk.dirty[file.inode].path = path
    disk.note((_parent(path),), lambda: real.unlink(path))


def _rename(source: str, target: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
    old, new = _absolute(source, src_dir_fd), _absolute(target, dst_dir_fd)
    disk = disk_of(new)
    if disk is None:
        real.rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        return
    disk.step()
    grave = disk.bury(new) if os.path.isfile(new) else ""
    try:
        inode = real.stat(old).st_ino
        real.rename(old, new)
    except OSError:
        if grave:
            real.unlink(grave)
        raise
    if inode in disk.dirty:
        disk.dirty[inode].path = new

    def undo() -> None:
        if not os.path.isdir(_parent(old)):
            real.unlink(new)
        else:
            real.rename(new, old)
        if grave:
            real.link(grave, new)

    # The place of the old name counts first: that is where the loss shows.
    disk.note((_parent(new), _parent(old)), undo, grave)


def _unlink(path: Any, *, dir_fd: int | None = None) -> None:
    full = _absolute(path, dir_fd)
    disk = disk_of(full)
    if disk is None:
        real.unlink(path, dir_fd=dir_fd)
        return
    disk.step()
    grave = disk.bury(full)
    try:
        real.unlink(full)
    except OSError:
        if grave:
            real.unlink(grave)
        raise
    if grave:
        disk.note((_parent(full),), lambda: real.link(grave, full), grave)


def _mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
    disk = disk_of(path)
    if disk is None:
        real.mkdir(path, mode, dir_fd=dir_fd)
        return
    if os.path.isdir(_parent(path)) and not os.path.isdir(path):
        disk.step()
        disk.room(device_of(path))
    real.mkdir(path, mode)
    disk.note((_parent(path),), lambda: remove_tree(path))


def _rmdir(path: Any, *, dir_fd: int | None = None) -> None:
    disk = disk_of(path)
    if disk is None:
        real.rmdir(path, dir_fd=dir_fd)
        return
    disk.step()
    real.rmdir(path)
    disk.note((_parent(path),), lambda: real.mkdir(path))


def _truncate(target: Any, length: int) -> None:
    path = _files[target].path if target in _files else target
    disk = disk_of(path)
    if disk is None:
        real.truncate(target, length)
        return
    disk.step()
    with open(path, "rb") as file:
        before = file.read()
    real.truncate(target, length)
    now = worldtime.stamp_ns()
    real.utime(path, ns=(now, now))
    if before:
        inode = real.stat(path).st_ino
        dirty = disk.dirty.get(inode)
        if dirty is not None:
            dirty.size = min(dirty.size, length)

        def undo() -> None:
            if os.path.exists(path) and real.stat(path).st_ino == inode and real.stat(path).st_size <= len(before):
                with open(path, "r+b") as file:
                    file.write(before)

        disk.note((path,), undo, is_queue=path.endswith(QUEUE))


def _setxattr(target: Any, name: str, value: bytes, *args: Any, **kwargs: Any) -> None:
    file = _files.get(target) if isinstance(target, int) else None
    if file is not None:
        file.disk.step()
        file.disk.room(file.device)
    _real_setxattr(target, name, value, *args, **kwargs)


_real_setxattr = os.setxattr


def _statvfs(target: Any) -> Any:
    file = _files.get(target) if isinstance(target, int) else None
    path = target if file is None else file.path
    disk = file.disk if file is not None else disk_of(path)
    if disk is None:
        return real.statvfs(target)
    is_full = (file.device if file is not None else device_of(path)) in disk.full
    free = 1000 if is_full else 1 << 28
    return SimpleNamespace(f_frsize=4096, f_bsize=4096, f_blocks=1 << 29, f_bfree=free, f_bavail=free, f_files=1 << 30,
                           f_ffree=1 << 29, f_favail=1 << 29, f_flag=0, f_namemax=255)


def remove_tree(path: str) -> None:
    """Past the wrappers, which note nothing of it."""
    for entry in list(os.scandir(path)):
        if entry.is_dir(follow_symlinks=False):
            remove_tree(entry.path)
        else:
            real.unlink(entry.path)
    real.rmdir(path)


def _boot_id() -> str:
    life = lives.current()
    disk = None if life is None else disks.get(str(life.node))
    return "of the harness" if disk is None else f"{disk.node}-{disk.boots}"


def install(chance: Callable[[int], bytes]) -> None:
    os.open, os.write, os.fsync, os.fdatasync = _open, _write, _fsync, _fsync
    os.link, os.rename, os.replace = _link, _rename, _rename  # type: ignore[assignment]
    os.unlink, os.remove, os.mkdir, os.rmdir = _unlink, _unlink, _mkdir, _rmdir
    os.truncate, os.ftruncate = _truncate, _truncate
    os.setxattr, os.statvfs, os.fstatvfs = _setxattr, _statvfs, _statvfs  # type: ignore[assignment]
    fs.boot_id = _boot_id
    os.urandom = chance
    os.getpid = lambda: 4242


