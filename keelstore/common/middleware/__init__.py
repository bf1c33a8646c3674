"""The filters of a paste pipeline, one file each (``doc/admin/middleware`` tells operators of them).

A module has a docstring (what it does, where it stands, what it needs), ``AFTER`` and ``BEFORE`` (entry point names; checked
by ``common/wsgi`` when a pipeline is loaded), an options dataclass, a class that is a WSGI app and ``filter_factory``.

- ``catch_errors``: transaction ids, exceptions to 500, bodies of the promised length
- ``gatekeeper``: headers of the inside stay inside
- ``healthcheck``: ``/healthcheck``
- ``proxy_logging``: access lines and metrics; ``access_line``: template to line
- ``cache``: the shared cache (entry point ``memcache``)
- ``listing_formats``: listings as text, JSON or XML
- ``ratelimit``: writes and listings per second
- ``tempauth``: users in the configuration; ``tempauth_conf``: its users and prefixes, ``tempauth_tokens``: Fernet tokens
- ``bulk``: many objects with one request; ``bulk_tar``: reading archives
- ``tempurl``: requests authorized by a signed URL; ``temp_urls``: its checks that need no key
- ``formpost``: files uploaded by a signed form; ``form_data``: reading one
- ``signatures``: those of URLs and forms; ``url_keys``: the keys that make them
- ``staticweb``: containers as web sites; ``web_pages``: the pages that it makes
- ``authorizing``: asking for authorization before the proxy does
- ``keystoneauth``: identities that Keystone vouches for; ``s3token``: those of S3 keys, ``s3token_client``: asking Keystone
- ``copy``: COPY, and PUT with X-Copy-From
- ``account_quotas``, ``container_quotas``: limits to bytes and objects; ``quotas``: what both share
- ``slo``: static large objects, with ``slo_manifest`` (a client's manifest, pure), ``slo_put`` and ``slo_delete``; ``dlo``:
  dynamic ones
- ``symlink``: objects that lead to others
- ``versioned_writes``: versions of objects (a package)
- ``crypto``: encryption at rest (a package)
- ``container_sync``: writes of other clusters of our realm
- ``read_only``, ``name_check``: writes and names refused; ``crossdomain``: ``/crossdomain.xml``
- ``domain_remap``, ``cname_lookup``: accounts and containers as host names
- ``etag_quoter``: ETags in quotes; ``list_endpoints``: where replicas are
- ``backend_ratelimit``: requests to each device of a storage server; ``xprofile``: where time goes
- ``s3api/``: the S3 protocol
- ``recon``: what a node tells of itself; ``metrics``: ``/metrics`` of a proxy
- ``bodies``: what those share that look at whole answers
"""
