"""Speed and memory, always as a ratio against the host's own model in the same run."""
