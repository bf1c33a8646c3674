"""Glance's API server, for one port of this machine: glance_api.py PORT; OS_GLANCE_CONFIG_DIR names the directory of its configuration.

waitress in place of uWSGI: it reads bodies whose length nobody has said.
"""

import sys

from glance.common import wsgi_app
from waitress import serve

if __name__ == "__main__":
    serve(wsgi_app.init_app(), host="127.0.0.1", port=int(sys.argv[1]), threads=4, max_request_body_size=1 << 30)
