"""xprofile: where the time of a server goes, by function, at ``/__profile__`` (``spec: middleware 34``).

Every worker profiles what passes while it passes, and writes what it has seen to ``<log_filename_prefix><pid>.json`` now and
then. ``GET /__profile__`` lists the profiles; ``/__profile__/current``, ``/all`` or a pid shows one, ``?format=json`` and
``csv`` give it to programs; ``?sort=``, ``?limit=`` and a trailing ``/<nfl>`` (a text that file, line or function holds)
choose from it.

Nothing that a client sends is evaluated, imported, opened or run (``security: S43``; elsewhere such a page did): an id is a
number, or one of two words, and parameters are looked up in tables. Profiles are JSON, never pickle or marshal.

For a while, on a server that no stranger reaches: it slows all requests down, and answers everybody.
Stands after catch_errors, gatekeeper and healthcheck. Needs a directory that only the server may write to.
"""

from __future__ import annotations

import cProfile
import csv
import io
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from keelstore.common.http import Environ, Request, Response, StartResponse, WSGIApp
from keelstore.common.logs import logger_for
from keelstore.common.options import not_negative, option, parse, unused

AFTER: Final = ("catch_errors", "gatekeeper", "healthcheck")
BEFORE: Final[tuple[str, ...]] = ()

FIELDS: Final = ("calls", "own_s", "total_s")
_SORTS: Final = {"calls": 0, "ncalls": 0, "time": 1, "tottime": 1, "own": 1, "cumulative": 2, "cumtime": 2, "total": 2}
_FORMATS: Final = ("default", "json", "csv")
_MAX_FILE: Final = 32 << 20  # bytes of one profile that are read
_MAX_PROFILES: Final = 1000

Profile = dict[str, list[float]]
"""``file:line(function)`` to its calls, its own seconds and its seconds with all that it called."""


@dataclass(frozen=True)
class XProfileOptions:
    """Options of ``[filter:xprofile]``."""

    profile_module: str = unused("", "the profiler is that of the standard library.")
    log_filename_prefix: str = option("/var/log/keelstore/profile/default.profile.", "Start of the names of profiles.")
    dump_interval: float = option(5.0, "Seconds between writes of a worker's profile.", check=not_negative)
    dump_timestamp: bool = option(False, "Keep earlier writes: put the time into the names.")
    path: str = option("__profile__", "Path of the pages.")
    flush_at_shutdown: bool = option(False, "Remove this worker's profile when it ends.")
    unwind: bool = option(False, "Profile bodies that are made while they are sent, too.")


class XProfile:
    def __init__(self, app: WSGIApp, options: XProfileOptions, logger: logging.Logger,
                 now: Callable[[], float] = time.time):
        self.app, self.options, self.log, self._now = app, options, logger, now
        self._path = "/" + options.path.strip("/")
        self._profiler: cProfile.Profile | None = None
        self._pid = 0
        self._inside = 0
        self._next_dump = 0.0
        self._directory, self._prefix = os.path.split(options.log_filename_prefix)
        self._directory = self._directory or "."

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == self._path or path.startswith(self._path + "/"):
            return self._page(Request(environ))(environ, start_response)
        self._enter()
        try:
            body = self.app(environ, start_response)
            if self.options.unwind and type(body) is not tuple and type(body) is not list:
                body = list(body)
            return body
        finally:
            self._leave()

    # -- profiling ---------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """One profiler sees all requests that are under way: green threads share their native one."""
        if self._pid != os.getpid():
            self._pid, self._profiler, self._inside = os.getpid(), cProfile.Profile(), 0
            if self.options.flush_at_shutdown:
                import atexit

                atexit.register(self._remove, self._pid)
        self._inside += 1
        if self._inside == 1 and self._profiler is not None:
            self._profiler.enable()

    def _leave(self) -> None:
        self._inside -= 1
        if self._inside == 0 and self._profiler is not None:
            self._profiler.disable()
            if self._now() >= self._next_dump:
                self._next_dump = self._now() + self.options.dump_interval
                self._dump()

    def _dump(self) -> None:
        name = f"{self._prefix}{os.getpid()}" + (f"-{int(self._now())}" if self.options.dump_timestamp else "") + ".json"
        path = os.path.join(self._directory, name)
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                json.dump(self.current(), file)
            os.replace(f"{path}.new", path)
        except OSError as error:
            self.log.warning("the profile %s cannot be written: %s", path, error.strerror)

    def _remove(self, pid: int) -> None:
        for name in self._names():
            if name.split("-")[0] == str(pid) and pid == os.getpid():
                os.unlink(os.path.join(self._directory, f"{self._prefix}{name}.json"))

    def current(self) -> Profile:
        """What this worker has seen."""
        found: Profile = {}
        for entry in self._profiler.getstats() if self._profiler is not None else ():
            code = entry.code
            name = code if isinstance(code, str) else f"{code.co_filename}:{code.co_firstlineno}({code.co_name})"
            _add(found, name, (entry.callcount, entry.inlinetime, entry.totaltime))
        return found

    # -- pages -------------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        """Ids of the profiles that have been written: a pid, or a pid and a time."""
        try:
            listed = os.listdir(self._directory)
        except OSError:
            return []
        ids = [name[len(self._prefix):-5] for name in listed if name.startswith(self._prefix) and name.endswith(".json")]
        return sorted(name for name in ids if _is_id(name))[:_MAX_PROFILES]

    def _page(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response(405, {"Allow": "GET, HEAD"})
        parts = request.path[len(self._path):].strip("/").split("/", 1)
        params = request.params
        form = params.get("format", "default")
        if form not in _FORMATS:
            return Response(404, body=f"Formats are {', '.join(_FORMATS)}.", content_type="text/plain")
        sort = _SORTS.get(params.get("sort", "time"))
        limit = params.get("limit", "50")
        if sort is None or not (limit.isascii() and limit.isdigit() and len(limit) < 8):
            return Response(400, body=f"sort is one of {', '.join(_SORTS)}; limit a number.", content_type="text/plain")
        if not parts[0]:
            return self._index()
        profile = self._profile(parts[0])
        if profile is None:
            return Response(404, body="There is no such profile.", content_type="text/plain")
        wanted = parts[1] if len(parts) > 1 else ""
        rows = sorted(((name, values) for name, values in profile.items() if wanted in name),
                      key=lambda row: (-row[1][sort], row[0]))
        if int(limit):
            rows = rows[:int(limit)]
        return _shown(rows, form)

    def _profile(self, name: str) -> Profile | None:
        if name == "current":
            return self.current()
        known = self._names()
        if name != "all" and name not in known:
            return None
        found: Profile = {}
        try:
            for one in known if name == "all" else [name]:
                for function, values in self._read(one).items():
                    _add(found, function, values)
        except (OSError, ValueError, TypeError) as error:
            self.log.warning("a profile cannot be read: %s", error)
            return None
        return found

    def _read(self, name: str) -> Mapping[str, Any]:
        with open(os.path.join(self._directory, f"{self._prefix}{name}.json"), encoding="utf-8") as file:
            found = json.loads(file.read(_MAX_FILE))
        if not isinstance(found, dict):
            raise ValueError("no profile")
        return found

    def _index(self) -> Response:
        links = "\n".join(f'<li><a href="{escape(f"{self._path}/{name}")}">{escape(name)}</a></li>'
                          for name in ("current", "all", *self._names()))
        return _html(f"<h1>Profiles</h1>\n<ul>\n{links}\n</ul>")


def _is_id(name: str) -> bool:
    pid, _, when = name.partition("-")
    return pid.isascii() and pid.isdigit() and (not when or (when.isascii() and when.isdigit()))


def _add(found: Profile, name: str, values: Iterable[float]) -> None:
    calls, own, total = (float(value) for value in values)
    known = found.setdefault(name, [0, 0.0, 0.0])
    known[0] += int(calls)
    known[1] += own
    known[2] += total


def _html(body: str) -> Response:
    page = f"<!DOCTYPE html>\n<html><head><title>Profile</title></head><body>\n{body}\n</body></html>\n"
    return Response(200, {"Content-Type": "text/html; charset=UTF-8", "X-Content-Type-Options": "nosniff",
                          "Content-Security-Policy": "default-src 'none'"}, body=page)


def _shown(rows: list[tuple[str, list[float]]], form: str) -> Response:
    if form == "json":
        return Response(200, body=json.dumps([dict(zip(("function", *FIELDS), (name, *values))) for name, values in rows]),
                        content_type="application/json")
    if form == "csv":
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow(("function", *FIELDS))
        writer.writerows((name, *values) for name, values in rows)
        return Response(200, body=out.getvalue(), content_type="text/csv")
    cells = "\n".join(f"<tr><td>{values[0]}</td><td>{values[1]:.6f}</td><td>{values[2]:.6f}</td><td>{escape(name)}</td></tr>"
                      for name, values in rows)
    return _html("<table>\n<tr><th>calls</th><th>own s</th><th>total s</th><th>function</th></tr>\n" + cells + "\n</table>")


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], XProfile]:
    conf = {**global_conf, **local_conf}
    options = parse(XProfileOptions, conf, section="filter:xprofile", local=local_conf, known=("use", "set *", "log_*"))
    logger = logger_for(conf, "xprofile")
    return lambda app: XProfile(app, options, logger)
