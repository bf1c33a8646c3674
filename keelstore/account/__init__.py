"""The account service: which containers an account holds.

``server`` has the verbs, ``broker`` is one account's database, ``schema`` its tables. Pure: ``rows`` (how two accounts of a
container become one row). ``options`` are those of the server.
"""
