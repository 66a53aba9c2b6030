"""What helps with training jobs of the user's own."""
