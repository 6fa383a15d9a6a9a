"""Speed and memory, always as a ratio against upstream's own model in the same run."""
