"""tempauth's users and reseller prefixes, out of their options. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field

from keelstore.common.errors import ConfigError

SECTION = "filter:tempauth"


@dataclass(frozen=True)
class User:
    """``groups`` as configured, ``.admin`` and the like included; ``url`` '' for that of the account."""

    account: str
    name: str
    key: str = field(repr=False)
    groups: tuple[str, ...] = ()
    url: str = ""


@dataclass(frozen=True)
class Rules:
    """Reseller prefixes (with their ``_``, the first is that of tokens and URLs) and the groups they require."""

    prefixes: tuple[str, ...] = ("AUTH_",)
    require_group: Mapping[str, str] = field(default_factory=dict)

    @property
    def longest_first(self) -> tuple[str, ...]:
        return tuple(sorted(self.prefixes, key=len, reverse=True))

    def url_of(self, user: User) -> str:
        return user.url or f"$HOST/v1/{self.prefixes[0]}{user.account}"

    def groups_of(self, user: User) -> str:
        """The comma list that a token stands for; ``.admin`` becomes ownership under each prefix and of the URL's account."""
        found = [user.account, f"{user.account}:{user.name}", *user.groups]
        if ".admin" in found:
            found = [group for group in found if group != ".admin"]
            found += [f"{prefix}{user.account}" for prefix in self.prefixes]
            of_url = self.url_of(user).rpartition("/")[2]
            if of_url and of_url not in found:
                found.append(of_url)
        return ",".join(dict.fromkeys(found))


def rules_of(conf: Mapping[str, str]) -> Rules:
    """From ``reseller_prefix`` and ``[<prefix>_]require_group``; a blank prefix is written ``''``."""
    prefixes: list[str] = []
    for item in conf.get("reseller_prefix", "AUTH").split(","):
        name = item.strip()
        if name in ("''", '""', ""):
            prefix = ""
        else:
            prefix = name if name.endswith("_") else name + "_"
        if prefix not in prefixes:
            prefixes.append(prefix)
    required: dict[str, str] = {}
    default = conf.get("require_group", "").strip()
    for prefix in prefixes:
        names = (f"{prefix}require_group",) if prefix else ("''require_group", "''_require_group")
        found = next((conf[name].strip() for name in names if name in conf), default)
        if found:
            required[prefix] = found
    return Rules(tuple(prefixes), required)


def users_of(conf: Mapping[str, str]) -> dict[str, User]:
    """``account:user`` to user. Raises ConfigError, without the value: it holds a key."""
    found: dict[str, User] = {}
    for option, text in conf.items():
        kind, underscore, rest = option.partition("_")
        if kind not in ("user", "user64") or not underscore:
            continue
        account, separator, name = rest.partition("_")
        if not separator or not account or not name:
            raise ConfigError(f"expected a name {kind}_<account>_<user>", section=SECTION, option=option)
        if kind == "user64":
            account, name = _decoded(account, option), _decoded(name, option)
        values = str(text).split()
        if not values:
            raise ConfigError("expected <key> [group] ... [url]; an empty key lets nobody in", section=SECTION,
                              option=option)
        key, *groups = values
        url = ""
        if groups and ("://" in groups[-1] or groups[-1].startswith("$HOST")):
            url = groups.pop()
        user = User(account, name, key, tuple(groups), url.rstrip("/"))
        if ":" in account or "," in account + name:
            raise ConfigError("an account may not hold ':' or ',', a user no ','", section=SECTION, option=option)
        found[f"{account}:{name}"] = user
    return found


def _decoded(text: str, option: str) -> str:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise ConfigError("expected base64 (without =) of account and user", section=SECTION, option=option) from None
