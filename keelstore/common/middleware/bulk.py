"""bulk: many objects with one request: the files of a tar archive stored, a list of names deleted (``spec: middleware 8``).

``PUT ?extract-archive=tar|tar.gz|tar.bz2`` and ``POST`` (or ``DELETE``) ``?bulk-delete``. The answer is 200 at once; the
outcome stands in its body, in the form that the client accepts. Every object is a request of its own with the client's token,
which goes through all filters behind this one: who may do it one by one may do it in bulk, and nobody else.

Stands before ratelimit and authentication. Needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from keelstore.common import concurrency, work_report
from keelstore.common.cluster import load_cluster
from keelstore.common.errors import ConfigError, KeelstoreError, RequestError
from keelstore.common.http import Environ, Request, Response, StartResponse, WSGIApp, call_app, status_line
from keelstore.common.internal import subrequest
from keelstore.common.limits import Limits
from keelstore.common.logs import logger_for
from keelstore.common.middleware.bulk_tar import BadArchive, Entry, entries, mode_of
from keelstore.common.options import Check, not_negative, option, parse, positive
from keelstore.common.registry import register_info

AFTER: Final = ("catch_errors", "gatekeeper", "memcache")
# It may stand on either side of authentication: its requests are authorized one by one (Swift's S3 pipelines have it after).
BEFORE: Final = ("ratelimit", "staticweb", "copy", "container_quotas",
                 "account_quotas", "slo", "dlo", "versioned_writes", "symlink", "encryption")

_TOKENS: Final = ("X-Auth-Token", "X-Storage-Token", "X-Service-Token")


def _between(low: int, high: int) -> Check:
    return lambda value: None if low <= value <= high else f"a number from {low} to {high}"


@dataclass(frozen=True)
class BulkOptions:
    """Options of ``[filter:bulk]``."""

    max_containers_per_extraction: int = option(10000, "Most containers that one archive may create.", check=positive)
    max_failed_extractions: int = option(1000, "Failures after which an extraction stops.", check=positive)
    max_deletes_per_request: int = option(10000, "Most names in one bulk delete.", check=positive)
    max_failed_deletes: int = option(1000, "Failures after which a bulk delete stops.", check=positive)
    yield_frequency: float = option(10.0, "Seconds between the blanks that keep the connection alive.", check=positive)
    delete_container_retry_count: int = option(
        0, "How often to try again to delete a container that is not empty yet; after 1, 1.5, 2.25 ... seconds.",
        check=not_negative)
    delete_concurrency: int = option(2, "Deletes at once for one request.", check=_between(1, 1000))
    swift_dir: str = option("/etc/swift", "Directory of the cluster file.")


@dataclass
class Outcome:
    """What came of it so far. ``status`` and ``text`` are set when it had to stop."""

    done: int = 0
    missing: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list)
    had_server_error: bool = False
    status: int = 0
    text: str = ""

    def fail(self, name: str, status: int) -> None:
        """``name`` is wire text (octets as latin-1)."""
        self.errors.append((quote(name.encode("latin-1")), status_line(status)))
        self.had_server_error |= status // 100 == 5

    def final_status(self, success: int) -> int:
        if self.status:
            return self.status
        if self.errors:
            return 502 if self.had_server_error else 400
        return success


class Stop(KeelstoreError):
    """The rest is not to be done. ``status`` and the text say why."""

    def __init__(self, status: int, text: str = ""):
        super().__init__(text)
        self.status, self.text = status, text


class Bulk:
    def __init__(self, app: WSGIApp, options: BulkOptions, limits: Limits | None = None, logger: Any = None,
                 sleep: Callable[[float], Any] = concurrency.sleep):
        self.app, self.options, self.limits, self.log, self._sleep = app, options, limits or Limits(), logger, sleep

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        query = environ.get("QUERY_STRING")
        if query and ("extract-archive" in query or "bulk-delete" in query):
            answer = self._answer(Request(environ))
            if answer is not None:
                return answer(environ, start_response)
        return self.app(environ, start_response)

    def _answer(self, request: Request) -> Response | None:
        method, params = request.method, request.params
        if method == "PUT" and "extract-archive" in params:
            mode = mode_of(params["extract-archive"])
            if mode is None:
                return Response(400, body="Unsupported archive format", content_type="text/html; charset=UTF-8")
            return self._report(request, "extract", "Number Files Created", 201,
                                lambda outcome: self._extract(request, mode, outcome))
        if method in ("POST", "DELETE") and "bulk-delete" in params:
            names: list[str] = []
            failure: Stop | None = None
            try:  # before the answer begins: a client that waits for 100 Continue must get it first
                names = self._names(request)
            except (Stop, RequestError) as error:
                failure = error if isinstance(error, Stop) else Stop(error.status, error.reason)

            def work(outcome: Outcome) -> None:
                if failure is not None:
                    raise failure
                self._delete(request, names, outcome)

            return self._report(request, "delete", "Number Deleted", 200, work)
        return None

    def _report(self, request: Request, root: str, count: str, success: int, work: Callable[[Outcome], None]) -> Response:
        form = work_report.format_of(request.header("Accept"))

        def run() -> bytes:
            outcome = Outcome()
            try:
                if form is None:
                    raise Stop(406)
                if request.content_length is None and not request.is_chunked:
                    raise Stop(411)
                work(outcome)
            except Stop as stop:
                outcome.status, outcome.text = stop.status, stop.text
            except RequestError as error:
                outcome.status, outcome.text = error.status, error.reason
            except Exception:  # the answer has begun: its body is where to say so
                if self.log is not None:
                    self.log.exception("bulk %s failed (txn: %s)", root, request.trans_id)
                outcome.status = 502
            values: dict[str, Any] = {"Response Status": status_line(outcome.final_status(success)),
                                      "Response Body": outcome.text, count: outcome.done}
            if root == "delete":
                values["Number Not Found"] = outcome.missing
            return work_report.render(form or work_report.TEXT, root, values, outcome.errors)

        return Response(200, content_type=form or work_report.TEXT,
                        app_iter=work_report.KeptAlive(form or work_report.TEXT, run, self.options.yield_frequency))

    def _base(self, request: Request) -> str:
        """``/v1/account``. Raises Stop for a path that has none."""
        parts = request.path.split("/", 3)
        if len(parts) < 3 or parts[0] or not parts[1] or not parts[2]:
            raise Stop(404)
        return "/".join(parts[:3])

    def _ask(self, request: Request, method: str, path: str, source: str, agent: str, headers: dict[str, str],
             body: Any = b"", length: int | None = None) -> int:
        """The status of a request with the client's rights; ``path`` is text."""
        sent = {name: request.header(name) for name in _TOKENS}
        sent.update(headers)
        sent["User-Agent"] = f"{request.header('User-Agent', '')} {agent}".strip()
        environ = subrequest(request.environ, method, path, headers=sent, body=body, length=length, source=source)
        try:
            response = call_app(self.app, environ)
            response.drain()
        except RequestError as error:
            return error.status
        return response.status

    # -- archives ----------------------------------------------------------------------------------------------------

    def _extract(self, request: Request, mode: str, outcome: Outcome) -> None:
        options = self.options
        base = self._base(request)
        prefix = request.path.rstrip("/")
        headers = {name: value for name, value in request.header_items()
                   if name.startswith("X-Object-Meta-") or name in ("X-Delete-At", "X-Delete-After")}
        containers: dict[str, int] = {}
        found = 0
        try:
            for entry in entries(request.body_file, mode):
                path = f"{prefix}/{entry.name}"
                parts = path[len(base) + 1:].split("/", 1)
                if len(parts) < 2 or not parts[0] or not parts[1]:
                    continue
                found += 1
                status = self._store(request, entry, path, f"{base}/{parts[0]}", headers, containers, outcome)
                if status == 401:
                    raise Stop(401)
                if status // 100 == 2:
                    outcome.done += 1
                else:
                    outcome.fail(entry.wire_name, status)
                if len(outcome.errors) >= options.max_failed_extractions:
                    raise Stop(400, f"More than {options.max_failed_extractions - 1} files failed.")
        except BadArchive as error:
            raise Stop(400, f"Invalid Tar File: {error}") from None
        if not found:
            raise Stop(400, "Invalid Tar File: No Valid Files")

    def _store(self, request: Request, entry: Entry, path: str, container: str, headers: dict[str, str],
               containers: dict[str, int], outcome: Outcome) -> int:
        """The status of storing one file, whose container is made first if need be. ``containers`` are those seen."""
        if entry.size > self.limits.max_file_size:
            return 413
        if not entry.is_valid:
            return 412
        container_status = containers.get(container)
        is_new = container_status is None
        if container_status is None:
            container_status = containers[container] = self._make_container(request, container, containers)
            if container_status == 401:
                return 401
        status = self._ask(request, "PUT", path, "EA", "BulkExpand", {**headers, **entry.headers}, entry.input, entry.size)
        if entry.is_broken:
            raise BadArchive("unexpected end of data")
        if status // 100 != 2 and status != 401 and is_new and container_status // 100 != 2:
            outcome.fail(container.encode("utf-8", "surrogateescape").decode("latin-1"), container_status)
        return status

    def _make_container(self, request: Request, path: str, containers: dict[str, int]) -> int:
        status = self._ask(request, "HEAD", path, "EA", "BulkExpand", {})
        if status != 404:
            return status
        if sum(one == 201 for one in containers.values()) >= self.options.max_containers_per_extraction:
            raise Stop(400, f"More than {self.options.max_containers_per_extraction} containers would be created.")
        return self._ask(request, "PUT", path, "EA", "BulkExpand", {})

    # -- deletes -----------------------------------------------------------------------------------------------------

    def _names(self, request: Request) -> list[str]:
        """The names to delete, wire strings as they stand in the list, decoded. Raises Stop and RequestError."""
        content_type = request.header("Content-Type")
        if content_type and not content_type.startswith("text/plain"):
            raise Stop(406)
        if request.content_length is None and not request.is_chunked:
            raise Stop(411)
        limits, most = self.limits, self.options.max_deletes_per_request
        longest = 2 * (limits.max_object_name_length + limits.max_container_name_length + 2)
        names: list[str] = []
        for line in _lines(request.body_file, longest):
            if line is None:
                raise Stop(400, "Invalid File Name")
            name = unquote_to_bytes(line.strip()).decode("latin-1")
            if not name:
                continue
            if len(names) >= most:
                raise Stop(413, f"Maximum Bulk Deletes: {most} per request")
            names.append(name if name.startswith("/") else f"/{name}")
        return names

    def _delete(self, request: Request, names: list[str], outcome: Outcome) -> None:
        base = self._base(request)
        containers = [name for name in names if "/" not in name[1:].rstrip("/")]
        objects = [name for name in names if "/" in name[1:].rstrip("/")]
        for group, is_container in ((objects, False), (containers, True)):
            self._delete_all(request, base, group, is_container, outcome)
        if not (outcome.done or outcome.missing or outcome.errors):
            raise Stop(400, "Invalid bulk delete.")

    def _delete_all(self, request: Request, base: str, names: list[str], is_container: bool, outcome: Outcome) -> None:
        most = self.options.max_failed_deletes
        if len(names) == 1 or self.options.delete_concurrency == 1:
            for name in names:
                self._note(outcome, name, self._delete_one(request, base, name, is_container))
                if len(outcome.errors) >= most:
                    break
        else:
            pool = concurrency.Pool(self.options.delete_concurrency)
            running: list[tuple[str, concurrency.Task]] = []
            for name in names:
                running.append((name, pool.spawn(self._delete_one, request, base, name, is_container)))
                while running and (running[0][1].ended or len(running) > 2 * self.options.delete_concurrency):
                    first, task = running.pop(0)
                    self._note(outcome, first, task.wait())
                if len(outcome.errors) >= most:
                    break
            for name, task in running:
                self._note(outcome, name, task.wait())
        if len(outcome.errors) >= most:
            raise Stop(400, f"More than {most - 1} deletes failed.")

    def _delete_one(self, request: Request, base: str, name: str, is_container: bool) -> int:
        """The status of one delete; what fails unexpectedly counts as a server error."""
        try:
            text = name.encode("latin-1").decode("utf-8")
        except UnicodeDecodeError:
            return 412
        if "\x00" in text:
            return 412
        if is_container:
            text = text.rstrip("/")
            if not text:
                return 400  # never the account itself, whatever a blank name would mean
        tries = self.options.delete_container_retry_count if is_container else 0
        try:
            for attempt in range(tries + 1):
                status = self._ask(request, "DELETE", base + text, "BD", "BulkDelete", {})
                if status != 409 or attempt == tries:
                    return status
                self._sleep(1.5 ** attempt)
        except Exception:
            if self.log is not None:
                self.log.exception("bulk delete of %r failed (txn: %s)", name, request.trans_id)
        return 502

    @staticmethod
    def _note(outcome: Outcome, name: str, status: int) -> None:
        if status == 404:
            outcome.missing += 1
        elif status // 100 == 2:
            outcome.done += 1
        else:
            outcome.fail(name, status)


def _lines(body: Any, longest: int) -> Iterator[bytes | None]:
    """The lines of a body; None for one that is too long, after which nothing more is read."""
    while True:
        line = body.readline(longest + 1)
        if not line:
            return
        if len(line.rstrip(b"\r\n")) > longest or (len(line) > longest and not line.endswith(b"\n")):
            yield None
            return
        yield line


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], Bulk]:
    conf = {**global_conf, **local_conf}
    options = parse(BulkOptions, conf, section="filter:bulk", local=local_conf, known=("use", "set *", "log_*"))
    try:
        limits = load_cluster(options.swift_dir).limits
    except ConfigError:  # the proxy itself says so if that matters
        limits = Limits()
    register_info("bulk_upload", max_containers_per_extraction=options.max_containers_per_extraction,
                  max_failed_extractions=options.max_failed_extractions)
    register_info("bulk_delete", max_deletes_per_request=options.max_deletes_per_request,
                  max_failed_deletes=options.max_failed_deletes)
    logger = logger_for(conf, "bulk")
    return lambda app: Bulk(app, options, limits, logger)
