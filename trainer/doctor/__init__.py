"""What works on this machine, and how to mend the rest: facts that probes find, and judgments of them."""

from moonmill.trainer.doctor.facts import Facts
from moonmill.trainer.doctor.lines import Line
from moonmill.trainer.doctor.verdicts import Verdict

__all__ = ["Facts", "Line", "Verdict"]
