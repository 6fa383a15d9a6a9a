"""Criterions that the papers' experiments need and fairseq does not have."""
