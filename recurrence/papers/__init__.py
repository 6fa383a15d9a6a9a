"""One file per paper: its block, what a pass owns, and a function that builds the loop."""
