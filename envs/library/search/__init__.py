"""What `search-v0` is made of: a made-up world and its documents, corpora from files, the index, the environment."""
