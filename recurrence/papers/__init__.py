"""A paper is a file: its block, what a pass of it owns, and the loop that it builds of both."""
