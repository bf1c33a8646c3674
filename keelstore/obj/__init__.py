"""The object service: objects as files on the devices of a node, and the server that answers for them.

Deciding: ``layout`` (names of files), ``fileset`` (which files are the object), ``metadata`` (the record in the
attributes), ``request`` (what a request asks for), ``mime_put`` (the multi-stage PUT on the wire), ``options``.
Acting: ``place`` (where an object lives), ``attributes`` (metadata of an open file), ``hashdir`` (one hash
directory), ``hashes`` (suffix hashes), ``writer`` (files put in place, durably), ``reader`` (an open object and its
body), ``store`` (ObjectStore, of all these), ``updates`` (container updates, expiry queue, async pendings), ``get``,
``put``, ``post``, ``delete`` (the verbs), ``server``. ``ssync`` is the protocol that replicates objects.
"""
