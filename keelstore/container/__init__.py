"""The container service: which objects a container holds.

``server`` has the verbs, ``sharding_server`` what they do with shard ranges, ``updates`` tells accounts, ``sync_to``
checks where a container may be synced to. ``broker`` is one container's database, ``shard_rows`` its table of shard
ranges, ``schema`` its tables, ``row_batch`` puts many rows in at once. Pure: ``rows`` (how two accounts of an object
become one row), ``policy_rule`` (whose storage policy is right) and ``reconcile`` (objects under the wrong one, and
their queue, which ``misplaced`` feeds). Daemons: ``replicator`` and ``auditor`` keep databases alike and whole,
``updater`` tells accounts what servers could not, ``reconciler`` moves objects under the wrong policy, ``lifecycle``
ends objects of S3 buckets by their rules, ``sync`` (with ``sync_remote``) brings what is written to copies in other
clusters. ``options`` are those of server and daemons.
"""
