"""Heat's engine, driven by commands (``test.support.openstack.Shell``); runs under the Python that has Heat.

Stacks are made, watched and deleted in this process, with a database of its own in a file and no message bus: the one thing of
Heat's that is replaced is the client of its own engine, through which resources ask for software configurations.
"""

import contextlib
import os
import sqlite3
import sys
import threading
import uuid

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from heat.common import context, messaging, template_format, urlfetch
from heat.db import api as db_api
from heat.db import models
from heat.engine import environment, resource, resources, service_software_config, stack, template
from oslo_config import cfg
from oslo_log import log
from shell_loop import serve

STACKS = {}
THREADS = []
WHO = {}


class LocalEngine:
    """What Heat's engine answers about software configurations, without a bus between."""

    DEFAULTS = {"create_software_config": {"inputs": [], "outputs": [], "options": {}}, "create_software_deployment": {"stack_user_project_id": None}}

    def __init__(self):
        self.service = service_software_config.SoftwareConfigService()

    def ignore_error_by_name(self, name):
        return self.local_error_by_name(name)

    class local_error_by_name:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            return kind is not None and kind.__name__ == self.name

    def __getattr__(self, name):
        method = getattr(self.service, name)

        def call(cnxt, *args, **kwargs):
            defaults = {key: value for key, value in self.DEFAULTS.get(name, {}).items() if kwargs.get(key) is None}
            return method(cnxt, *args, **{**kwargs, **defaults})

        return call


def configure(path, database, **who):
    """``who``: what a request's context says of a user. Makes the database."""
    log.register_options(cfg.CONF)
    cfg.CONF(["--config-file", path], project="heat", default_config_files=[])
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")  # so that who reads does not keep a stack from being written
    cfg.CONF.set_override("connection", f"sqlite:///{database}?timeout=60", group="database")
    models.BASE.metadata.create_all(db_api.get_engine())
    messaging.setup("fake://", optional=True)
    resources.initialise()
    WHO.update(who)
    local = LocalEngine()
    resource.Resource.rpc_client = lambda self: local


def new_context():
    return context.RequestContext.from_dict(dict(WHO, is_admin=False))


def in_context(ask):
    found = new_context()  # which the plugin only refers to
    return ask(found.clients.client_plugin("swift"))


def signal_url(container, name):
    return in_context(lambda swift: swift.get_signal_url(container, name))


def temp_url(container, name, method="PUT", timeout=None):
    return in_context(lambda swift: swift.get_temp_url(container, name, timeout=timeout, method=method))


def files(container, skip=()):
    return in_context(lambda swift: swift.get_files_from_container(container, list(skip)))


def date(text):
    return in_context(lambda swift: swift.parse_last_modified(text).isoformat())


def verdict(method, args):
    """What Heat takes the error of a call for."""
    def ask(swift):
        try:
            getattr(swift.client(), method)(*args)
        except Exception as error:
            kinds = {"not found": swift.is_not_found(error), "conflict": swift.is_conflict(error), "over limit": swift.is_over_limit(error)}
            return [name for name, is_so in kinds.items() if is_so]
        return None

    return in_context(ask)


def fetch(url):
    """A template by its URL."""
    text = urlfetch.get(url)
    return text.decode() if isinstance(text, bytes) else text


def call(method, args=()):
    """What a method of python-swiftclient's Connection gives, of the one that Heat has made."""
    found = in_context(lambda swift: getattr(swift.client(), method)(*args))
    return found if not isinstance(found, tuple) else [part.decode() if isinstance(part, bytes) else part for part in found]


def create(text):
    """Begin to make a stack; gives its id, while its resources are being made in a thread."""
    made = stack.Stack(new_context(), f"stack{uuid.uuid4().hex}", template.Template(template_format.parse(text), env=environment.Environment({})))
    made.validate()
    made.store()
    STACKS[made.id] = made
    _start(made.create)
    return made.id


def _start(work):
    thread = threading.Thread(target=work, daemon=True)
    THREADS.append(thread)
    thread.start()


def state(stack_id):
    """The state of a stack, why, and the state of each resource."""
    found = STACKS[stack_id]
    return {"state": "_".join(found.state), "reason": found.status_reason, "busy": any(thread.is_alive() for thread in THREADS),
            "resources": {name: "_".join(one.state) for name, one in found.resources.items()}}


def attribute(stack_id, name, attribute):
    return STACKS[stack_id][name].FnGetAtt(attribute)


def live(stack_id, name):
    """What is true of a resource, as Heat finds it out from the cloud."""
    one = STACKS[stack_id][name]
    return one.parse_live_resource_data(one.properties, one.get_live_resource_data())


def reference(stack_id, name):
    return STACKS[stack_id][name].FnGetRefId()


def data(stack_id, name):
    return dict(STACKS[stack_id][name].data())


def metadata(stack_id, name):
    return STACKS[stack_id][name].metadata_get(refresh=True)


def check(stack_id):
    _start(STACKS[stack_id].check)


def delete(stack_id):
    _start(STACKS[stack_id].delete)


if __name__ == "__main__":
    serve({"configure": configure, "signal_url": signal_url, "temp_url": temp_url, "files": files, "date": date, "verdict": verdict, "fetch": fetch, "call": call, "create": create,
           "state": state, "attribute": attribute, "live": live, "reference": reference, "data": data, "metadata": metadata, "check": check,
           "delete": delete})
