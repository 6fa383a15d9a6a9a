"""Tasks in the papers' experiments that fairseq does not have."""
