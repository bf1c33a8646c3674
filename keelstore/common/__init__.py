"""What more than one service needs, each thing under its own name.

- values and rules, pure: ``timestamp``, ``names``, ``headers``, ``limits``, ``ranges`` (shard ranges), ``policy``,
  ``quorum``, ``acl``, ``byteranges``, ``conditionals``, ``transid``, ``listing`` and ``listing_render``, ``expiry``
  (its queue)
- ``errors``: the error tree; ``options``: configuration as dataclasses; ``cluster``: the cluster file; ``registry``:
  what ``/info`` publishes; ``plainpickle``: pickles of plain data; ``mime``: content types by name
- HTTP: ``http`` (requests and responses, sole importer of WebOb); our server ``httpserver``, ``httpconnection``,
  ``httpinput``, ``httpanswer``, ``proxyprotocol``, ``admission`` (of uploads); what server and client share:
  ``httpparse``, ``httpbody``, ``relay``; ``ranged`` (answers to Range)
- calls to storage nodes: ``backend``, by ``localcall`` or ``httpclient``, both ways at once by ``duplex``;
  ``two_phase``: what a PUT of a fragment sends;
  ``storage_server`` and ``db_server`` are the other end
- ``internal``: requests of our own through a pipeline; ``info``: what is known of an account or container; ``cache``,
  ``cache_embedded``, ``cache_memcached``
- databases: ``broker``, ``broker_cache``, ``broker_schema``, ``broker_steps``, ``broker_sync``, ``pending``; their
  daemons: ``db_replicator``, ``db_rules`` (pure), ``db_sync`` (one peer), ``db_transfer`` (whole files), ``db_walk``,
  ``db_auditor``, ``db_options``
- large objects: ``segments`` (manifests and plans, pure), ``segment_reader`` (their bodies); ``work_report``: answers
  to long work
- the edge: ``concurrency`` (sole importer of eventlet), ``disk_calls``, ``disk_steps``, ``disk_turns``, ``pace``, ``pauses``,
  ``last_closes``, ``syncs``, ``linux_aio`` (syncs without waiting), ``sockets``, ``send_ahead``,
  ``fs`` (of xattr), ``unsynced``, ``room``, ``reads``, ``locks``, ``devices``,
  ``aligned`` (large bodies in buffers that disks take as they are), ``codec`` (of PyECLib),
  ``digests`` (MD5s of several streams side by side, by ``_md5lanes``), ``allocator`` (what it keeps), ``logs``, ``stats``;
  ``sync_realms``: the clusters that containers are synced with
- running: ``entry_points``, ``paste_config`` (files to components), ``wsgi`` (pipelines to services), ``daemon``
  (processes)
- daemons: ``daemon_frame`` (what each of them is), ``between_passes``, ``daemon_shares`` (several processes of one),
  ``work`` (queue, throttle, progress), ``events`` (hints from servers), ``peers`` (who is down), ``device_walk`` (what is
  on devices), ``proof`` (may a copy go?), ``rsync``, ``recon_cache`` (what they leave for recon)
- what is seen: ``metrics`` (requests counted; the form of Prometheus), ``node_health`` (how a node is), ``metrics_page``
- packages: ``ring`` (rings and their builder), ``middleware`` (the filters of pipelines)
"""
