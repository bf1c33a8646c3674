"""Facts about the code that drift unless something checks them: layers, sole importers, generated files, maps, entry points."""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import keelstore
from keelstore.cli import samples
from keelstore.common.entry_points import APPS, COMMANDS, FILTERS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "keelstore"
LAYERS = {"cli": 3, "node": 2, "proxy": 1, "obj": 1, "container": 1, "account": 1, "common": 0}
SOLE_IMPORTERS = {
    "eventlet": {"common/concurrency.py"}, "greenlet": {"common/concurrency.py"}, "webob": {"common/http.py"},
    "xattr": {"common/fs.py"}, "pyeclib": {"common/codec.py"},
}
LIGHT_COMMANDS = ("keelstore.cli.main", "keelstore.cli.status", "keelstore.cli.up", "keelstore.cli.down")


@cache
def sources() -> list[tuple[str, ast.Module]]:
    return [(path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(PACKAGE.rglob("*.py"))]


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of the modules that a module imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_point_down() -> None:
    wrong = []
    for path, tree in sources():
        own = path.partition("/")[0]
        if own not in LAYERS:
            continue
        for name in imported(tree):
            parts = name.split(".")
            if parts[0] != "keelstore" or len(parts) < 2 or parts[1] not in LAYERS or parts[1] == own:
                continue
            if LAYERS[parts[1]] >= LAYERS[own]:
                wrong.append(f"{path} imports {name}")
    assert wrong == []


def test_each_library_has_one_importer() -> None:
    wrong = [f"{path} imports {name}" for path, tree in sources() for name in imported(tree)
             if path not in SOLE_IMPORTERS.get(name.partition(".")[0], {path})]
    assert wrong == []


def test_numpy_belongs_to_the_ring_builder() -> None:
    wrong = [path for path, tree in sources() if "numpy" in {name.partition(".")[0] for name in imported(tree)}
             and not path.startswith(("common/ring/", "cli/ring_"))]
    assert wrong == []


def test_only_entry_points_patch_the_standard_library() -> None:
    patching = [path for path, tree in sources() for node in ast.walk(tree)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "monkey_patch"]
    assert set(patching) <= {"node/__main__.py", "node/run_daemon.py", "common/concurrency.py"}


def test_sample_files_and_option_reference_are_current() -> None:
    assert samples.stale() == [], "run: python -m keelstore.cli.samples"


@pytest.mark.parametrize("package", ["cli", "node", "proxy", "obj", "container", "account", "common", "common/ring",
                                     "common/middleware"])
def test_package_maps_name_every_module(package: str) -> None:
    text = ast.get_docstring(ast.parse((PACKAGE / package / "__init__.py").read_text())) or ""
    modules = {info.name for info in pkgutil.iter_modules([str(PACKAGE / package)])}
    words = set(re.findall(r"[A-Za-z0-9_]+", text))
    assert modules - words == set(), f"keelstore/{package}/__init__.py does not say what these are"


def test_every_module_says_what_it_is() -> None:
    assert [path for path, tree in sources() if not ast.get_docstring(tree)] == []


@pytest.mark.parametrize("target", sorted({*APPS.values(), *FILTERS.values()}))
def test_paste_entry_points_exist(target: str) -> None:
    module, _, name = target.partition(":")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("name,target", sorted(COMMANDS.items()))
def test_commands_exist_and_have_a_script(name: str, target: str) -> None:
    module, _, function = target.partition(":")
    tree = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert os.access(ROOT / "bin" / name, os.X_OK)


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_filters_say_where_they_stand(name: str) -> None:
    module = importlib.import_module(FILTERS[name].partition(":")[0])
    assert isinstance(module.AFTER, tuple) and isinstance(module.BEFORE, tuple)


@pytest.mark.parametrize("module", LIGHT_COMMANDS)
def test_commands_start_without_what_they_do_not_need(module: str) -> None:
    tree = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text())
    top = {name.partition(".")[0] for node in tree.body for name in imported(node)
           if isinstance(node, (ast.Import, ast.ImportFrom))}
    assert not top & {"numpy", "eventlet", "lxml", "requests", "rich"}


def test_no_source_file_is_huge() -> None:
    assert [path for path in PACKAGE.rglob("*.py") if len(path.read_text().splitlines()) > 900] == []


def test_the_version_is_a_plain_number() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", keelstore.__version__)


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of such an expression; of another one what follows its last dot that can be told."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def called(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Dotted names of what a module calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def test_security_S07_S18_S43_nothing_that_came_from_outside_is_run() -> None:
    """Neither evaluated nor unpickled; pickles of plain data have one reader, common/plainpickle.py."""
    forbidden = {"eval", "exec", "compile", "__import__", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "yaml.load",
                 "shelve.open", "os.system", "os.popen"}
    wrong = [f"{path}: {name}" for path, tree in sources() for name, _ in called(tree)
             if name in forbidden or name.endswith((".Unpickler", "cPickle.loads"))]
    assert [one for one in wrong if not one.startswith("common/plainpickle.py")] == []
    shells = [path for path, tree in sources() for _, call in called(tree) for keyword in call.keywords
              if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)]
    assert shells == []


def test_security_S19_no_client_skips_the_check_of_a_certificate() -> None:
    wrong = [path for path, tree in sources() for node in ast.walk(tree)
             if (isinstance(node, ast.Attribute) and node.attr in ("CERT_NONE", "_create_unverified_context"))
             or (isinstance(node, ast.keyword) and node.arg in ("verify", "check_hostname", "cert_reqs") and isinstance(node.value, ast.Constant) and not node.value.value)
             or (isinstance(node, ast.Assign) and any(isinstance(target, ast.Attribute) and target.attr == "check_hostname" for target in node.targets))]
    assert wrong == []


def test_security_S15_secrets_are_compared_in_constant_time() -> None:
    """What is named as a signature, key or token is not compared with == to what a client sent."""
    words = re.compile(r"(^|_|\.)(signature|sig|hmac|secret|password)$")
    wrong = []
    for path, tree in sources():
        if path.startswith("cli/"):
            continue  # what an operator runs for himself
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and any(isinstance(operator, (ast.Eq, ast.NotEq)) for operator in node.ops):
                sides = [node.left, *node.comparators]
                if any(words.search(dotted(side)) for side in sides) and not any(isinstance(side, ast.Constant) for side in sides):
                    wrong.append(f"{path}:{node.lineno}")
    assert wrong == []


def test_security_S56_everything_starts_where_the_kernel_gives_no_crypto_sockets() -> None:
    """A container runtime denies AF_ALG: no module needs it, at import or to hash."""
    code = """
import pkgutil, socket, importlib, sys
real = socket.socket.__init__
def denied(self, family=-1, *args, **kwargs):
    if family == getattr(socket, "AF_ALG", 38):
        raise PermissionError(1, "Operation not permitted")
    real(self, family, *args, **kwargs)
socket.socket.__init__ = denied
import keelstore
for info in pkgutil.walk_packages(keelstore.__path__, "keelstore."):
    if not info.name.endswith("__main__"):
        importlib.import_module(info.name)
from hashlib import md5
assert md5(b"", usedforsecurity=False).hexdigest().startswith("d41d")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [path for path, tree in sources() for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "AF_ALG"] == []


def test_every_row_of_the_security_page_has_its_tests() -> None:
    """And every test that bears the id of a row is on the page."""
    rows = dict(re.findall(r"^\| ([SRCX]\d\d) \|[^|]*\|([^|]*)\|$", (ROOT / "doc/design/security.md").read_text(), re.MULTILINE))
    found: dict[str, set[str]] = {}
    for path in (ROOT / "test").rglob("test_*.py"):
        for name in re.findall(r"^def (test_(?:case|security)_\w+)", path.read_text(), re.MULTILINE):
            for row in re.findall(r"(?<=_)[SRCX]\d\d(?=_)", name):
                found.setdefault(row, set()).add(path.relative_to(ROOT / "test").with_suffix("").as_posix())
    assert [row for row in found if row not in rows] == [], "add a line for these to doc/design/security.md"
    listed = {row: set(files.replace(",", " ").split()) for row, files in rows.items()}
    assert {row: files - found.get(row, set()) for row, files in listed.items() if not files or not files <= found.get(row, set())} == {}


def test_every_fault_scenario_has_its_tests() -> None:
    """Those that do not concern sharding; and each test of one that bears its number is on the page."""
    rows = {int(row): set(files.replace(",", " ").split()) for row, files in re.findall(
        r"^\| (\d+) \|[^|]*\|([^|]*)\|$", (ROOT / "doc/design/scenarios.md").read_text(), re.MULTILINE)}
    found: dict[int, set[str]] = {}
    for path in (ROOT / "test/fault").glob("test_*.py"):
        for numbers in re.findall(r"^def test_scenarios?((?:_(?:\d{2,3}|and|to)(?=[_(]))+)", path.read_text(), re.MULTILINE):
            for first, last in re.findall(r"(\d+)(?:_to_(\d+))?", numbers):
                for row in range(int(first), int(last or first) + 1):
                    found.setdefault(row, set()).add(path.relative_to(ROOT / "test").with_suffix("").as_posix())
    wanted = set(range(1, 142)) - {123}  # 123 is in all of 110 to 131: names and metadata are not ASCII
    assert set(rows) == wanted
    assert {row: files for row, files in rows.items() if files != found.get(row, set()) or not files} == {}
