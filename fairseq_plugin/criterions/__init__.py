"""Criterions that fairseq does not have."""
