"""Measurements that a person or a session starts by hand; none is a test, and CI runs none.

They compare in turns (A B A B), in many short rounds, and quote the least or the median of CPU times: machines are shared.

- ``pipeline``: what the filters of the full pipeline cost, and how fast a large object of segments streams
- ``serving``: the process that serves one store through several pipelines; ``meter``: CPU time of processes, rounds
"""
