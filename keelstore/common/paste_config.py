"""Paste configuration: files and directories of ``*.conf`` to sections, and sections to the factories they name.

The format is the field's (``spec: daemons 1``): option names keep their case, ``%(name)s`` is replaced only where a value
holds ``%(``, ``[DEFAULT]`` is inherited. Inside an ``[app:]`` or ``[filter:]`` section a plain option that ``[DEFAULT]``
also has does not count, as PasteDeploy has it; ``set name = value`` overrides. We warn of the former.

``use = egg:swift#NAME`` and ``egg:keelstore#NAME`` are ours (``entry_points.py``), whether installed or not. Whatever else
may stand there (``egg:Other#name``, ``call:module:function``, ``config:file#name``) is PasteDeploy's to load.
"""

from __future__ import annotations

import configparser
import difflib
import importlib
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from keelstore.common.entry_points import APPS, FILTERS
from keelstore.common.errors import ConfigError

log = logging.getLogger("keelstore.config")

OUR_DISTRIBUTIONS = ("keelstore", "swift")
_REFERENCE = re.compile(r"%\(([^)]+)\)s")
_KIND_OPTIONS = {
    "app": ("paste.app_factory", "paste.composite_factory"),
    "filter": ("paste.filter_factory", "paste.filter_app_factory"),
}
_MAX_DEPTH = 10  # of references in references, and of sections that use sections


@dataclass(frozen=True)
class Configuration:
    """A configuration as read: ``path`` is what was asked for, ``defaults`` is ``[DEFAULT]``, then the other sections."""

    path: str
    defaults: Mapping[str, str]
    sections: Mapping[str, Mapping[str, str]]

    @property
    def here(self) -> str:
        """The directory that relative names in it start from."""
        return self.path if os.path.isdir(self.path) else os.path.dirname(self.path)

    def merged(self, section: str) -> dict[str, str]:
        """The options of a section and what it inherits; for sections that are not paste's. Raises ConfigError."""
        if section not in self.sections:
            raise ConfigError(f"Unable to find {section} config section in {self.path}")
        return {**self.defaults, **self.sections[section]}


@dataclass(frozen=True)
class Component:
    """One app or filter of a pipeline, ready to be built.

    ``entry`` is the name of its entry point when it is ours or an egg's, else that of its section. ``origin`` is the module
    and function that makes it.
    """

    kind: str
    section: str
    entry: str
    origin: str
    factory: Callable[..., Any] = field(compare=False)
    global_conf: Mapping[str, str] = field(default_factory=dict)
    local_conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return self.origin.startswith("keelstore.")

    def build(self) -> Any:
        """Call the factory: an app, or for a filter what takes the next app."""
        return self.factory(dict(self.global_conf), **self.local_conf)


# -- reading -----------------------------------------------------------------------------------------------------------


def config_files(path: str) -> list[str]:
    """The files that ``path`` stands for. Raises ConfigError when there is none."""
    if os.path.isdir(path):
        names = sorted(name for name in os.listdir(path) if name.endswith(".conf") and not name.startswith("."))
        if not names:
            raise ConfigError("no *.conf file in this directory", file=path)
        return [os.path.join(path, name) for name in names]
    if not os.path.exists(path):
        raise ConfigError(f"unable to locate {path}")
    return [path]


def read_config(path: str) -> Configuration:
    """Read a file, or every ``*.conf`` of a directory in order of name as one. Raises ConfigError."""
    path = os.path.abspath(path)
    parser = configparser.RawConfigParser(strict=False, default_section="\0none")
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    for name in config_files(path):
        try:
            with open(name, encoding="utf-8", errors="surrogateescape") as file:
                parser.read_file(file)
        except (OSError, configparser.Error) as error:
            raise ConfigError(f"cannot be read: {' '.join(str(error).split())}", file=name) from None
    here = path if os.path.isdir(path) else os.path.dirname(path)
    raw = {name: dict(parser.items(name)) for name in parser.sections()}
    defaults = {"here": here, "__file__": path, **raw.pop("DEFAULT", {})}
    resolved = {name: _expand(value, defaults, path, "DEFAULT", name) for name, value in defaults.items()}
    sections = {
        section: {
            name: _expand(value, {**defaults, **options}, path, section, name) for name, value in options.items()
        }
        for section, options in raw.items()
    }
    return Configuration(path, resolved, sections)


def _expand(value: str, names: Mapping[str, str], path: str, section: str, option: str, depth: int = 0) -> str:
    if "%(" not in value:
        return value
    if depth > _MAX_DEPTH:
        raise ConfigError("references itself", file=path, section=section, option=option)

    def replace(match: re.Match[str]) -> str:
        if match[1] not in names:
            raise ConfigError(f"no option {match[1]!r} to put in for %({match[1]})s",
                              file=path, section=section, option=option)
        return _expand(names[match[1]], names, path, section, option, depth + 1)

    return _REFERENCE.sub(replace, value)


# -- components --------------------------------------------------------------------------------------------------------


def pipeline_of(config: Configuration, name: str = "main") -> tuple[list[Component], Component]:
    """The filters, in order of request, and the app of ``[pipeline:NAME]`` (or of ``[app:NAME]``). Raises ConfigError."""
    section = config.sections.get(f"pipeline:{name}")
    if section is None:
        if f"app:{name}" in config.sections:
            return [], component(config, "app", name)
        if f"composite:{name}" in config.sections:
            raise ConfigError("composite sections are not supported: give a [pipeline:main]",
                              file=config.path, section=f"composite:{name}")
        raise ConfigError(f"Unable to find pipeline:{name} config section in {config.path}")
    names = section.get("pipeline", "").split()
    if not names:
        raise ConfigError("expected the names of filters and of one app", file=config.path,
                          section=f"pipeline:{name}", option="pipeline", value=section.get("pipeline", ""))
    filters = [component(config, "filter", part) for part in names[:-1]]
    return filters, component(config, "app", names[-1])


def component(config: Configuration, kind: str, name: str) -> Component:
    """The component of ``[app:NAME]`` or ``[filter:NAME]``. Raises ConfigError."""
    section = f"{kind}:{name}"
    if section not in config.sections:
        other = "app" if kind == "filter" else "filter"
        hint = f" (there is a [{other}:{name}]: the app stands last)" if f"{other}:{name}" in config.sections else ""
        close = difflib.get_close_matches(section, config.sections, n=1, cutoff=0.8)
        if close and not hint:
            hint = f" (did you mean [{close[0]}]?)"
        raise ConfigError(f"the pipeline names {name!r}, but there is no [{section}] section{hint}", file=config.path)
    own = _own_options(config, kind, name)
    global_conf, local_conf = _split(config, section, own)
    use = own.get("use", "").strip()
    for option in _KIND_OPTIONS[kind]:
        if option in own and not use:
            factory = _imported(own[option].strip(), config.path, section, option)
            if option == "paste.filter_app_factory":
                factory = _filter_of_filter_app(factory)
            return Component(kind, section, name, own[option].strip(), factory, global_conf,
                             {**local_conf, "__name__": name})
    if not use:
        raise ConfigError("expected an option 'use', such as egg:keelstore#" + name, file=config.path, section=section)
    scheme, _, rest = use.partition(":")
    if scheme == "egg" and rest.partition("#")[0] in OUR_DISTRIBUTIONS:
        entry = rest.partition("#")[2] or "main"
        known = APPS if kind == "app" else FILTERS
        if entry not in known:
            close = difflib.get_close_matches(entry, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "known are: " + ", ".join(sorted(known))
            raise ConfigError(f"keelstore has no {kind} {entry!r} ({hint})", file=config.path, section=section,
                              option="use", value=use)
        factory = _imported(known[entry], config.path, section, "use")
        return Component(kind, section, entry, known[entry], factory, global_conf, {**local_conf, "__name__": name})
    if scheme not in ("egg", "call", "config"):
        raise ConfigError("expected egg:DISTRIBUTION#NAME, call:MODULE:FUNCTION, config:FILE#NAME or a section's name",
                          file=config.path, section=section, option="use", value=use)
    entry = rest.partition("#")[2] or name
    return Component(kind, section, entry, use, _foreign(config, kind, section, use), global_conf, local_conf)


def _own_options(config: Configuration, kind: str, name: str) -> dict[str, str]:
    """The section's options; ``use = NAME`` takes over those of another section of its kind."""
    section = f"{kind}:{name}"
    seen: set[str] = set()
    collected: dict[str, str] = {}
    while True:
        options = dict(config.sections[section])
        collected = {**options, **collected}
        use = options.get("use", "").strip()
        seen.add(section)
        following = f"{kind}:{use}"
        if not use or ":" in use or following not in config.sections:
            if use:
                collected["use"] = use
            return collected
        if following in seen:
            raise ConfigError("uses itself", file=config.path, section=section, option="use", value=use)
        collected.pop("use", None)
        section = following


def _split(config: Configuration, section: str, own: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    global_conf, local_conf = dict(config.defaults), {}
    for option, value in own.items():
        if option == "use" or option.startswith("paste."):
            continue
        if option.startswith("set "):
            global_conf[option[4:].strip()] = value
        elif option.startswith("get "):
            local_conf[option[4:].strip()] = global_conf.get(value.strip(), "")
        elif option in config.defaults:
            if config.defaults[option] != value:
                log.warning("%s [%s]: %s = %s does not count, [DEFAULT] has it too; write 'set %s = %s' to override",
                            config.path, section, option, value, option, value)
        else:
            local_conf[option] = value
    for option in [name for name in global_conf if name.startswith("set ")]:
        del global_conf[option]
    return global_conf, local_conf


def _imported(origin: str, path: str, section: str, option: str) -> Callable[..., Any]:
    module_name, _, attribute = origin.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in (attribute or "factory").split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot be loaded: {error}", file=path, section=section, option=option,
                          value=origin) from error
    return found


def _filter_of_filter_app(factory: Callable[..., Any]) -> Callable[..., Any]:
    def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[Any], Any]:
        return lambda app: factory(app, global_conf, **local_conf)

    return filter_factory


def _foreign(config: Configuration, kind: str, section: str, use: str) -> Callable[..., Any]:
    def factory(global_conf: dict[str, str], **local_conf: str) -> Any:
        from paste.deploy import loadwsgi  # only where it is needed: it brings in the metadata of all distributions

        kinds = {"app": loadwsgi.APP, "filter": loadwsgi.FILTER}
        try:
            context = loadwsgi.loadcontext(kinds[kind], use, relative_to=config.here, global_conf=global_conf)
        except (LookupError, ImportError, OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"cannot be loaded: {' '.join(str(error).split())}", file=config.path, section=section,
                              option="use", value=use) from error
        context.global_conf.update(global_conf)
        context.local_conf.update(local_conf)
        return context.create()

    return factory
