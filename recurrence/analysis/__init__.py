"""What trained models do inside, as numbers; the commands under `recipes/tools` draw the pictures."""
