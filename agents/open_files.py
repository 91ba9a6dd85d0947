"""How many files this process may have open."""

import resource
from contextlib import suppress


def allow_many_files() -> None:
    """Let this process open as many files as it may: every connection is one, and shells often start with 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS calls it unlimited and takes less.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
