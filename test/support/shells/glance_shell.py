"""Glance's library for stores, driven by commands (``test.support.openstack.Shell``); runs under the Python that has glance_store.

An image's data is in a file, and is read from one that cannot be wound back, as the body of an upload is.
"""

import os
import sys
import types

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import glance_store
import glance_store.multi_backend as stores
from oslo_config import cfg
from shell_loop import serve

CONF = cfg.CONF


class Source:
    """What a request's body is to Glance: it is read once, from its beginning to its end. ``fails_at``: octets after which it breaks."""

    def __init__(self, path, fails_at=None):
        self.file, self.fails_at, self.read_so_far = open(path, "rb"), fails_at, 0

    def read(self, size=-1):
        if self.fails_at is not None and self.read_so_far >= self.fails_at:
            raise OSError("the client has gone")
        data = self.file.read(size)
        self.read_so_far += len(data)
        return data


def configure(path, backends):
    """Make the stores of a configuration file, all of whose backends are of the type swift."""
    CONF.register_opt(cfg.DictOpt("enabled_backends"))
    CONF(["--config-file", path], project="glance", default_config_files=[])
    CONF.set_override("enabled_backends", dict.fromkeys(backends, "swift"))
    glance_store.register_store_opts(CONF)
    glance_store.create_multi_stores(CONF)
    stores.verify_store()


def context_of(fields):
    return types.SimpleNamespace(**fields) if fields else None


def add(backend, image, path, size, context=None, fails_at=None):
    uri, written, checksum, digest, metadata = stores.add_with_multihash(
        CONF, image, Source(path, fails_at), size, backend, "sha512", context=context_of(context))
    return {"uri": uri, "size": written, "checksum": checksum, "digest": digest, "metadata": metadata}


def get(backend, uri, path, context=None, piece=None):
    """Write an image to a file; gives the size that was announced."""
    found, size = stores.get(uri, backend, context=context_of(context), chunk_size=piece)
    with open(path, "wb") as file:
        for data in found:
            file.write(data)
    return size


def size_of(backend, uri, context=None):
    return stores.get_size_from_uri_and_backend(uri, backend, context=context_of(context))


def delete(backend, uri, context=None):
    stores.delete(uri, backend, context=context_of(context))


def acls(backend, uri, context, public=False, read=(), write=()):
    stores.set_acls_for_multi_store(uri, backend, public=public, read_tenants=list(read), write_tenants=list(write), context=context_of(context))


if __name__ == "__main__":
    serve({"configure": configure, "add": add, "get": get, "size_of": size_of, "delete": delete, "acls": acls})
