"""keelstore: an object store, compatible with OpenStack Swift.

The map, in layers; imports point down:

- ``cli``: command bodies (up, down, status, ring builder, ...)
- ``node``: a process group that hosts roles
- ``proxy``, ``obj``, ``container``, ``account``: the services; they do not import each other
- ``common``: what more than one service needs, each thing under its own name
"""

__version__ = "0.1.0"
SWIFT_VERSION = "2.38.0"  # of the Swift that this is compatible with: what clients look at to know what they may ask for
