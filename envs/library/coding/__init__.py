"""What `python-code-v0` is made of: a generator of tasks, HumanEval, and a grader that trusts nothing it runs."""
