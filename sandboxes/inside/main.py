"""The program as a whole."""

from __future__ import annotations

from moonmill.sandboxes.inside.supervisor import Supervisor


def main() -> None:
    """Serve the host on stdin and stdout, to the end."""
    supervisor = Supervisor()
    try:
        supervisor.run()
    except BaseException:
        import traceback

        supervisor.give_up("the supervisor failed: " + traceback.format_exc())
