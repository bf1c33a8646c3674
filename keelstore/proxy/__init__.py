"""The proxy: routes a client's request through the rings to account, container and object servers, and speaks for them.

- ``app``: route, authorise, dispatch; the paste factory
- ``options``: ``[app:proxy-server]`` and its sections per policy
- ``request``: the request with its names, and the headers that backends get (an allow-list)
- ``account``, ``container``, ``object``: the steps of each verb
- ``info_endpoint``, ``cors``: ``/info``; cross-origin requests
- ``placement``: pure: the order of nodes for a read or a write, and the update headers that go with a write
- ``health``: devices that failed lately
- ``rings``: the ring files of a cluster
- ``fanout``: one request to many nodes until a quorum has an outcome
- ``together``: a small PUT or DELETE on those of them that are in this process at once
- ``rounds``: one round of a conversation with the nodes of an upload
- ``repair``: what asks for the repair of a write that did not reach all its devices
- ``reader``: a read from the first good node, or the newest
- ``body``: a body that goes on from another node when one breaks off
- ``sharded``: listings of containers that have shards, and where their rows go
- ``replicated``: writing whole copies of objects
- ``fragments``: pure: who gets which fragment, which answers make an object, which bytes hold a range
- ``erasure``, ``erasure_read``, ``erasure_body``: writing fragments in two phases; asking for them; decoding them
"""
