"""A process group that hosts roles.

A role is a paste pipeline that ends in one of our apps. A node runs all its roles in each of its workers, so that a call
from one role to another on the same node is a function call.

- ``__main__``: entry point of ``keelstore-node CONF`` and of the servers that run a single role
- ``command``: the command line that starts a program of ours again
- ``descriptors``: how many connections the limit of open files allows
- ``listeners``: listening sockets that workers share, and fairness between them
- ``roles``: configuration files to what is to run
- ``supervisor``: binds, forks, replaces, stops, reloads
- ``worker``: one worker process
- ``background``: the process of a node's daemons; ``daemons``: which there are and how they are made; ``run_daemon``: entry
  point of one that runs alone; ``daemon_workers``: that one as several processes; ``wishes``: what an operator asks of them
"""
