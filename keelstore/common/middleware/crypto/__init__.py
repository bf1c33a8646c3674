"""Encryption at rest, in the layout of Swift (``doc/formats/encryption.md``): two filters at the right end of a pipeline.

A *keymaster* puts a callback into each request that derives keys from root secrets; the filter ``encryption`` encrypts what
is stored and decrypts what is read.

- ``keymaster``: root secrets in the configuration; ``kms_keymaster``: in a key manager, through Castellan;
  ``kmip_keymaster``: on a KMIP server
- ``encryption``: the filter; ``encrypter``: what it does to writes; ``decrypter``: to answers; ``listing``: to listings;
  ``told``: what filters further left hear of it
- ``keys``: pure: secrets and paths to keys; ``meta``: pure: how crypto meta is spelt; ``cipher``: AES in counter mode, sole
  importer of ``cryptography`` here
"""
