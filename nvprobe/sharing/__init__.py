"""Copies of captures that are safe to hand on (``nvprobe redact``, docs/security.md).

A copy holds what nvprobe reads and nothing else: known tables, columns, keys and kinds of lines are
written anew into a fresh file, so that no byte of what is left out can stay in it. The texts that
are kept lose folders, users, hosts, addresses and what looks like a secret.
"""
