"""Rings: which devices hold which partition of the hash space.

``ring`` is what servers use: the immutable ``Ring``, and ``RingFile``, which follows a file. ``format`` is the ring file in
all its versions. What changes rings is for operators' tools: ``builder`` (``RingBuilder``) with its file in ``builder_file``,
``composite`` (several builders, one ring), ``analyzer`` (what would happen if), and the pure parts ``devices`` (devices as
text), ``plan`` (replicas for each tier), ``topology`` (tiers as arrays), ``spread`` and ``assign`` (partitions to devices),
``dispersion`` (how far replicas lie apart). Only those import numpy. ``errors`` are the errors of all of them.
"""
