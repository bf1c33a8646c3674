"""A whole cluster in one process, under a seed: virtual time, a network and disks that fail, and the laws that must hold after.

``python -m test.simulation --seeds 1-100`` runs seeds, each in a process of its own that is forked from one that has loaded
everything. See doc/design/simulation.md.

From below: ``worldtime`` (virtual clock and event loop), ``lives`` (whose code runs: a node between two crashes), ``disks``
(what a crash leaves of a file system; full disks), ``databases`` (crashes around SQLite's commits), ``network`` (backend calls
that get lost), ``cluster`` (nodes, their servers and daemons), ``model`` (pure: what clients were told, and what may be true
then), ``laws`` (the check at the end), ``story`` (one seed: operations and faults), ``faults`` (deliberate faults of the
product, which must be found), ``runner`` (many seeds).
"""
