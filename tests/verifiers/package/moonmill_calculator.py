"""Moonmill's own calculator as a taskset of verifiers."""

from moonmill.envs.adapters.verifiers.exporting import to_verifiers

__all__ = ["Calculator"]
Calculator = to_verifiers("calculator-v0", levels=[1])
