"""SSYNC: one partition of a device brought to another device, object by object, over one connection.

Format: ``doc/formats/ssync.md`` (``spec: backend-protocol 5``). Modules: ``protocol`` (pure: the lines, and who wants what),
``receiver`` (the object server's side), ``sender`` (the replicator's side), ``listing`` (the objects of a partition on disk).
"""
