"""The families of architectures, one file each."""
