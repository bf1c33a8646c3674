"""What ``keelstore-dispersion-populate`` and ``keelstore-dispersion-report`` share: their file, and the account.

``dispersion.conf`` has one section, ``[dispersion]``. Containers ``dispersion_<policy>_<n>`` and objects
``dispersion_<n>`` in ``dispersion_objects_<policy>`` are spread so that a given share of all partitions has one
(``spec: daemons 24``).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import requests

from keelstore.cli.layout import CommandError
from keelstore.common.cluster import Cluster, load_cluster
from keelstore.common.options import not_negative, option, parse, percent, positive
from keelstore.common.paste_config import read_config
from keelstore.common.policy import Policy
from keelstore.common.ring.ring import Ring, RingFile

CONF = "/etc/swift/dispersion.conf"
TIMEOUT_S = 60.0
PAUSE_S, MOST_PAUSE_S = 0.2, 5.0  # before a request is repeated: doubled each time, up to the latter
SHOWN_EVERY_S = 5.0
T = TypeVar("T")


def _version(value: str) -> str | None:
    return None if value.strip()[:1] in ("1", "2", "3") else "1.0, 2.0 or 3"


@dataclass(frozen=True)
class DispersionOptions:
    """Options of ``[dispersion]`` in ``dispersion.conf``."""

    auth_url: str = option("http://localhost:8080/auth/v1.0", "Where to authenticate.")
    auth_user: str = option(
        "test:tester", "The user: ACCOUNT:USER, or USER with Keystone. It must own an account of its own."
    )
    auth_key: str = option("testing", "Its key or password.")
    auth_version: str = option("1.0", "1.0 (tempauth), 2.0 or 3 (Keystone).", check=_version)
    endpoint_type: str = option("publicURL", "Which endpoint of Keystone's catalog.")
    region_name: str = option("", "Its region; empty: any.")
    project_name: str = option("", "Keystone's project.")
    project_domain_name: str = option("Default", "Its domain.")
    user_domain_name: str = option("Default", "The user's domain.")
    keystone_api_insecure: bool = option(False, "Do not verify certificates.")
    swift_dir: str = option("/etc/swift", "Directory of the cluster file and the rings.")
    dispersion_coverage: float = option(1.0, "Percent of the partitions to cover.", check=percent)
    retries: int = option(5, "How often a request is repeated.", check=not_negative)
    concurrency: int = option(25, "Requests at once.", check=positive)
    container_populate: bool = option(True, "Populate containers.")
    object_populate: bool = option(True, "Populate objects.")
    container_report: bool = option(True, "Report on containers.")
    object_report: bool = option(True, "Report on objects.")
    dump_json: bool = option(False, "Report as JSON.")


@dataclass(frozen=True)
class Target:
    """What is worked on: one policy of a cluster."""

    options: DispersionOptions
    cluster: Cluster
    policy: Policy

    @property
    def container_prefix(self) -> str:
        return f"dispersion_{self.policy.index}_"

    @property
    def objects_container(self) -> str:
        return f"dispersion_objects_{self.policy.index}"

    def ring(self, kind: str) -> Ring:
        """Of ``container`` or ``object``. Raises RingError."""
        return RingFile(self.cluster.ring_path("container" if kind == "container" else self.policy.ring_name)).current()


def load_target(path: str, policy_name: str | None, **overrides: Any) -> Target:
    """Raises CommandError, ConfigError."""
    if not os.path.isfile(path):
        raise CommandError(f"Unable to read config file: {path}")
    config = read_config(path)
    conf = {
        **config.merged("dispersion"),
        **{name: str(value) for name, value in overrides.items() if value is not None},
    }
    options = parse(
        DispersionOptions,
        conf,
        section="dispersion",
        file=path,
        local=config.sections["dispersion"],
        known=("project_*", "user_*", "auth_*", "swift_proxy_server_*"),
    )
    cluster = load_cluster(options.swift_dir)
    policies = cluster.policies
    policy = policies.default if policy_name is None else policies.by_name(policy_name)
    if policy is None:
        raise CommandError(f"Unable to find policy: {policy_name}")
    return Target(options, cluster, policy)


# -- the account -------------------------------------------------------------------------------------------------------


class Account:
    """The account of the user, through the proxy. Safe to use by several threads. A token that has expired is renewed."""

    def __init__(self, options: DispersionOptions, retries: Retries):
        self._options, self._retries, self._local, self._renewal = options, retries, threading.local(), threading.Lock()
        self.token, self.url = retries.run(self._authenticate)
        self.name = urlsplit(self.url).path.rstrip("/").rpartition("/")[2]

    def _session(self) -> requests.Session:
        session = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
            session.verify = not self._options.keystone_api_insecure
            session.trust_env = False
        found: requests.Session = session
        return found

    def _authenticate(self) -> tuple[str, str]:
        options = self._options
        if options.auth_version.strip().startswith("1"):
            answer = self._session().get(
                options.auth_url,
                timeout=TIMEOUT_S,
                headers={"X-Auth-User": options.auth_user, "X-Auth-Key": options.auth_key},
            )
            _check(answer, "authentication")
            return answer.headers["X-Auth-Token"], answer.headers["X-Storage-Url"]
        return self._keystone()

    def _keystone(self) -> tuple[str, str]:
        options = self._options
        base = options.auth_url.rstrip("/")
        if options.auth_version.strip().startswith("2"):
            body: dict[str, Any] = {
                "auth": {
                    "passwordCredentials": {"username": options.auth_user, "password": options.auth_key},
                    "tenantName": options.project_name,
                }
            }
            answer = self._session().post(f"{base}/tokens", json=body, timeout=TIMEOUT_S)
            _check(answer, "authentication")
            access = answer.json()["access"]
            endpoints = [
                entry
                for service in access["serviceCatalog"]
                if service["type"] == "object-store"
                for entry in service["endpoints"]
            ]
            urls = [
                entry[options.endpoint_type] for entry in endpoints if options.region_name in ("", entry.get("region"))
            ]
            return access["token"]["id"], _first(urls)
        user = {"name": options.auth_user, "password": options.auth_key, "domain": {"name": options.user_domain_name}}
        body = {"auth": {"identity": {"methods": ["password"], "password": {"user": user}}}}
        if options.project_name:
            body["auth"]["scope"] = {
                "project": {"name": options.project_name, "domain": {"name": options.project_domain_name}}
            }
        answer = self._session().post(f"{base}/auth/tokens", json=body, timeout=TIMEOUT_S)
        _check(answer, "authentication")
        interface = options.endpoint_type.removesuffix("URL")
        urls = [
            entry["url"]
            for service in answer.json()["token"]["catalog"]
            if service["type"] == "object-store"
            for entry in service["endpoints"]
            if entry["interface"] == interface and options.region_name in ("", entry.get("region"))
        ]
        return answer.headers["X-Subject-Token"], _first(urls)

    def _send(self, method: str, url: str, headers: dict[str, str] | None = None, **what: Any) -> requests.Response:
        """With the token; once more with a new one where it is refused."""
        for is_last in (False, True):
            token = self.token
            answer = self._session().request(
                method, url, timeout=TIMEOUT_S, headers={"X-Auth-Token": token, **(headers or {})}, **what
            )
            if answer.status_code != 401 or is_last:
                break
            with self._renewal:
                if self.token == token:  # else another thread was faster
                    self.token, _ = self._authenticate()
        return answer

    def put(self, *names: str, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Raises CommandError when it cannot be had."""

        def once() -> None:
            path = "/".join(quote(name, safe="") for name in names)
            _check(self._send("PUT", f"{self.url}/{path}", headers, data=body), f"PUT of {'/'.join(names)}")

        self._retries.run(once)

    def listing(self, container: str, prefix: str) -> Iterator[str]:
        """Names in the account ('' for container) or a container. Nothing where that is not there."""
        marker = ""
        while True:
            names = self._retries.run(lambda marker=marker: self._page(container, prefix, marker))  # type: ignore[misc]
            if not names:
                return
            yield from names
            marker = names[-1]

    def _page(self, container: str, prefix: str, marker: str) -> list[str]:
        url = f"{self.url}/{quote(container, safe='')}" if container else self.url
        answer = self._send("GET", url, params={"format": "json", "prefix": prefix, "marker": marker})
        if answer.status_code == 404:
            return []
        _check(answer, f"listing of {container or 'the account'}")
        return [entry["name"] for entry in answer.json()] if answer.content else []


class Refused(CommandError):
    """Asking again would be of no use."""


def _check(answer: requests.Response, what: str) -> None:
    if answer.status_code >= 300:
        kind = Refused if answer.status_code in (401, 403) else CommandError
        raise kind(f"{what} answers {answer.status_code}: {answer.text.strip()[:200]}")


def _first(urls: Sequence[str]) -> str:
    if not urls:
        raise CommandError("the catalog has no such endpoint of object-store")
    return urls[0]


class Retries:
    """Repeats what fails, and counts how often."""

    def __init__(self, most: int):
        self.most, self.count, self._lock = most, 0, threading.Lock()

    def run(self, function: Callable[[], T], told: Callable[[str], object] = lambda problem: None) -> T:
        """What ``function`` gives; ``told`` is called with what was wrong before each repetition. Raises CommandError after
        the last try, or when it is refused.
        """
        pause = PAUSE_S
        for left in range(self.most, -1, -1):
            try:
                return function()
            except Refused:
                raise
            except (CommandError, requests.RequestException, KeyError, ValueError) as error:
                if not left:
                    raise CommandError(str(error)) from error
                told(str(error))
                with self._lock:
                    self.count += 1
                time.sleep(pause)
                pause = min(MOST_PAUSE_S, pause * 2)
        raise AssertionError


# -- progress ----------------------------------------------------------------------------------------------------------


class Progress:
    """The line that is written over while work goes on."""

    def __init__(self, doing: str, done: str, total: int, retries: Retries, out: Callable[[str], None]):
        self._doing, self._done, self._total, self._retries, self._out = doing, done, total, retries, out
        self._count, self._begun, self._first = 0, time.monotonic(), retries.count
        self._shown = self._begun

    def step(self) -> None:
        self._count += 1
        now = time.monotonic()
        if now - self._shown >= SHOWN_EVERY_S:
            self._shown = now
            left = (now - self._begun) / self._count * (self._total - self._count)
            self._out(
                f"\r\x1b[K{self._doing}: {self._count} of {self._total}, {rounded(left)} left, "
                f"{self._retries.count - self._first} retries"
            )

    def end(self) -> None:
        took = rounded(time.monotonic() - self._begun)
        self._out(
            f"\r\x1b[K{self._done.format(count=self._count)}, {took}, {self._retries.count - self._first} retries\n"
        )


def rounded(seconds: float) -> str:
    """As the field's tools say a time."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{round(seconds / size)}{unit}"
    return f"{round(seconds)}s"


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def in_parallel(function: Callable[[Any], T], items: Iterable[Any], count: int) -> Iterator[T]:
    """What ``function`` gives of each, as they come. The first error is raised, and no more is begun."""
    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
