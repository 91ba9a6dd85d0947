"""Other libraries' environments as ours, and ours as theirs. Each module needs the extra of its library."""
