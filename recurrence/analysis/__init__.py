"""What trained models do inside, as numbers; the programs in `recipes/figures` draw the pictures."""
