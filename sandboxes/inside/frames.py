"""What the two sides of a sandbox say to each other.

A frame is a head and a payload. A call is numbered by the host; what concerns no call has the number 0. What comes from
the inside is read as from a stranger: there is nothing in it but bytes, numbers and text.
"""

import struct

FRAME = struct.Struct(">BII")
"""Kind, call, bytes of the payload."""

# From the host.
SETUP = 1
"""What holds for all calls, marshalled: `env`, `user`, `rlimits`, `hide`, `oom_counter`."""
START = 2
"""A call, marshalled: `argv` or `do` and `args`; `env`, `user`, `cwd`, `input`, `limit`, `timeout`."""
INPUT = 3
"""For its stdin; empty: that was all."""
KILL = 4

# From the inside.
READY = 1
STDOUT = 2
STDERR = 3
TAKEN = 4
"""So many bytes of input have been taken, or are not wanted."""
EXIT = 5
REFUSED = 6
"""A call that could not be: an error number, at what it failed, a NUL, and why."""
BROKEN = 7
"""The sandbox is given up: why."""

TAKE = struct.Struct(">I")
ERRNO = struct.Struct(">i")
ENDED = struct.Struct(">iBd")
"""Return code, flags, seconds."""
TIMED_OUT, TRUNCATED, OOM_KILLED = 1, 2, 4

CHUNK = 65536
"""Bytes that are read or sent at once."""
