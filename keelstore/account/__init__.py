"""The account service: which containers an account holds.

``server`` has the verbs, ``broker`` is one account's database, ``schema`` its tables. Pure: ``rows`` (how two accounts of a
container become one row). Daemons: ``replicator`` and ``auditor`` keep databases alike and whole, ``reaper`` removes the
content of deleted accounts. ``options`` are those of server and daemons.
"""
