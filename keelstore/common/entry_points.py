"""The names under which paste configuration finds our apps and filters (``use = egg:swift#NAME``).

Read by ``paste_config.py``, so that a checkout works uninstalled, and by ``setup.py``. Pure data: imports nothing.
"""

APPS = {
    "proxy": "keelstore.proxy.app:app_factory",
    "account": "keelstore.account.server:app_factory",
    "container": "keelstore.container.server:app_factory",
    "object": "keelstore.obj.server:app_factory",
}

FILTERS = {
    name: f"keelstore.common.middleware.{module}:filter_factory"
    for name, module in {
        "account_quotas": "account_quotas",
        "bulk": "bulk",
        "catch_errors": "catch_errors",
        "container_quotas": "container_quotas",
        "copy": "copy",
        "encryption": "crypto.encryption",
        "dlo": "dlo",
        "formpost": "formpost",
        "gatekeeper": "gatekeeper",
        "healthcheck": "healthcheck",
        "keymaster": "crypto.keymaster",
        "kmip_keymaster": "crypto.kmip_keymaster",
        "kms_keymaster": "crypto.kms_keymaster",
        "listing_formats": "listing_formats",
        "memcache": "cache",
        "proxy_logging": "proxy_logging",
        "ratelimit": "ratelimit",
        "recon": "recon",
        "slo": "slo",
        "staticweb": "staticweb",
        "symlink": "symlink",
        "tempauth": "tempauth",
        "tempurl": "tempurl",
        "versioned_writes": "versioned_writes",
    }.items()
}

COMMANDS = {
    "keelstore": "keelstore.cli.main:main",
    "keelstore-node": "keelstore.node.__main__:main",
    "keelstore-proxy-server": "keelstore.node.__main__:proxy_server",
    "keelstore-account-server": "keelstore.node.__main__:account_server",
    "keelstore-container-server": "keelstore.node.__main__:container_server",
    "keelstore-object-server": "keelstore.node.__main__:object_server",
    "keelstore-init": "keelstore.cli.init:main",
    "keelstore-ring-builder": "keelstore.cli.ring_builder:main",
    "keelstore-ring-builder-analyzer": "keelstore.cli.ring_analyzer:main",
    "keelstore-ring-builder-safe": "keelstore.cli.ring_builder:main",
    "keelstore-ring-composer": "keelstore.cli.ring_composer:main",
}
