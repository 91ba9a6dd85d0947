"""Seeds from seeds.

Everything random in a run hangs from one number through `derive_seed`, so that two episodes never share a stream and
the same path always gives the same one, in any process and on any machine.
"""

import hashlib

SEED_BITS = 63
"""Seeds fit a signed 64-bit integer: what msgpack, numpy and torch all take."""


def derive_seed(root: int, *path: int | str) -> int:
    """A seed in `[0, 2**63)` for the place `path` below `root`."""
    text = "/".join(map(str, (root, *path)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> (64 - SEED_BITS)


def one_in(count: int, text: str) -> bool:
    """True for one text in `count`, at most 256, and for the same texts always: for splits that share no problem."""
    return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] % count == 0
