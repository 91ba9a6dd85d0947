"""What `terminal-v0` is made of: files, jobs to do with them, the check of what has become of them, the environment."""
