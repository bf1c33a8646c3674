"""The object service: objects as files on the devices of a node, and the server that answers for them.

Deciding: ``layout`` (names of files), ``fileset`` (which files are the object), ``metadata`` (the record in the
attributes), ``request`` (what a request asks for), ``mime_put`` (the multi-stage PUT on the wire), ``options``.
Acting: ``place`` (where an object lives), ``attributes`` (metadata of an open file), ``hashdir`` (one hash
directory), ``hashes`` (suffix hashes), ``writer`` (files put in place, durably), ``reader`` (an open object and its
body), ``seen`` (what was read of late), ``store`` (ObjectStore, of all these), ``updates`` (container updates, expiry
queue, async pendings), ``get``, ``put``, ``post``, ``delete`` (the verbs), ``together`` (a small PUT or DELETE on several
devices at once), ``server``.
``ssync`` is the protocol that replicates objects.
Daemons: ``partition_daemon`` (what the next two share, as ``peer_hashes`` and ``sessions``), ``replicator`` (``jobs``:
pure, what a partition needs; ``partition_work``, ``rsync``: it is done), ``reconstructor`` (``fragment_jobs``,
``rebuild_choice``: pure; ``fragment_work``; ``rebuild``: a fragment made anew; ``shared_digests``: MD5s of several at
once), ``auditor`` (``audit``: what is wrong with an object; ``watchers``; ``overdue``: what should have expired),
``updater`` (``backlog``, ``update_rows``), ``expirer`` (``expiry_queue``).
Not a daemon: ``relinker``, for another part power (``relink_plan``: pure; ``relink_hashdir``, ``relink_state``,
``relink_report``).
"""
