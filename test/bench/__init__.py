"""Measurements that a person or a session starts by hand; none is a test, and CI runs none.

They compare in turns (A B A B), in many short rounds, and quote the least or the median of CPU times: machines are shared.

- ``compare``: keelstore beside the reference in one run (``bin/bench``); of ``loads`` (the rows, the shared load generator), ``sides`` and ``rgw``
  (the stores that are started), ``report`` (factors and the page), ``plot`` (the picture)
- ``limits``: a PUT beside a bare program, a large GET beside ``sendfile``; ``bare``: those bare programs
- ``erasure``, ``rebuild``, ``repair``: erasure coding, the rebuild of a device, repair and idle daemons, each beside Swift
- ``pipeline``: what the filters of the full pipeline cost, and how fast a large object of segments streams
- ``scale``: what operations cost as work grows; of ``scale_rows`` (rows of a container, of an account), ``scale_device`` (objects on a device),
  ``scale_ring`` (devices of a ring) and ``curves`` (the picture)
- ``overload``: more asked than can be done; of ``crowds`` (of clients) and ``slow_device`` (a throttled one)
- ``serving``: the process that serves one store through several pipelines; ``meter``: CPU time of processes, rounds
"""
