"""Weights in another form: looped as unshared layers and back, and under the key names of other implementations."""
