"""Does an environment keep what training takes for granted? `check_env` plays it and looks."""

from moonmill.envs.checker.check import CHECKS, check_env, look
from moonmill.envs.checker.findings import Figures, Finding, Report

__all__ = ["CHECKS", "Figures", "Finding", "Report", "check_env", "look"]
