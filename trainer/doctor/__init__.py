"""What works on this machine, and how to mend the rest: facts that probes find, and judgments of them."""
