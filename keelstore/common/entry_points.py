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
        "backend_ratelimit": "backend_ratelimit",
        "bulk": "bulk",
        "catch_errors": "catch_errors",
        "cname_lookup": "cname_lookup",
        "container_quotas": "container_quotas",
        "container_sync": "container_sync",
        "copy": "copy",
        "crossdomain": "crossdomain",
        "dlo": "dlo",
        "domain_remap": "domain_remap",
        "encryption": "crypto.encryption",
        "etag_quoter": "etag_quoter",
        "formpost": "formpost",
        "gatekeeper": "gatekeeper",
        "healthcheck": "healthcheck",
        "keymaster": "crypto.keymaster",
        "keystoneauth": "keystoneauth",
        "kmip_keymaster": "crypto.kmip_keymaster",
        "kms_keymaster": "crypto.kms_keymaster",
        "list_endpoints": "list_endpoints",
        "listing_formats": "listing_formats",
        "memcache": "cache",
        "metrics": "metrics",
        "name_check": "name_check",
        "proxy_logging": "proxy_logging",
        "ratelimit": "ratelimit",
        "read_only": "read_only",
        "recon": "recon",
        "slo": "slo",
        "staticweb": "staticweb",
        "symlink": "symlink",
        "tempauth": "tempauth",
        "tempurl": "tempurl",
        "versioned_writes": "versioned_writes",
        "xprofile": "xprofile",
    }.items()
}

COMMANDS = {
    "keelstore": "keelstore.cli.main:main",
    "keelstore-node": "keelstore.node.__main__:main",
    "keelstore-proxy-server": "keelstore.node.__main__:proxy_server",
    "keelstore-account-server": "keelstore.node.__main__:account_server",
    "keelstore-container-server": "keelstore.node.__main__:container_server",
    "keelstore-object-server": "keelstore.node.__main__:object_server",
    "keelstore-account-replicator": "keelstore.node.run_daemon:account_replicator",
    "keelstore-account-auditor": "keelstore.node.run_daemon:account_auditor",
    "keelstore-account-reaper": "keelstore.node.run_daemon:account_reaper",
    "keelstore-container-replicator": "keelstore.node.run_daemon:container_replicator",
    "keelstore-container-auditor": "keelstore.node.run_daemon:container_auditor",
    "keelstore-container-reconciler": "keelstore.node.run_daemon:container_reconciler",
    "keelstore-container-sync": "keelstore.node.run_daemon:container_sync",
    "keelstore-container-updater": "keelstore.node.run_daemon:container_updater",
    "keelstore-object-replicator": "keelstore.node.run_daemon:object_replicator",
    "keelstore-object-reconstructor": "keelstore.node.run_daemon:object_reconstructor",
    "keelstore-object-auditor": "keelstore.node.run_daemon:object_auditor",
    "keelstore-object-updater": "keelstore.node.run_daemon:object_updater",
    "keelstore-object-expirer": "keelstore.node.run_daemon:object_expirer",
    "keelstore-init": "keelstore.cli.init:main",
    "keelstore-ring-builder": "keelstore.cli.ring_builder:main",
    "keelstore-ring-builder-analyzer": "keelstore.cli.ring_analyzer:main",
    "keelstore-ring-builder-safe": "keelstore.cli.ring_builder:main",
    "keelstore-ring-composer": "keelstore.cli.ring_composer:main",
}
