"""The self-check: whether the promises of a sandbox provider hold on this host.

`moonmill sandbox check` runs it. For a provider of your own:

    report = anyio.run(check, MyProvider)
    assert not report.having("broken")

It needs no pytest. What is run in the sandboxes is hostile, and made so that little is lost where a promise is broken.
"""

from moonmill.sandboxes.testing.case import PROMISES, BrokenPromiseError, Case, NotShownError, Outcome, Status
from moonmill.sandboxes.testing.lab import Lab, ProviderFactory
from moonmill.sandboxes.testing.suite import CASES, Promise, Report, check, choose

__all__ = [
    "CASES",
    "PROMISES",
    "BrokenPromiseError",
    "Case",
    "Lab",
    "NotShownError",
    "Outcome",
    "Promise",
    "ProviderFactory",
    "Report",
    "Status",
    "check",
    "choose",
]
