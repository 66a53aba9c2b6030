"""What is known of each finding: its meaning, usual causes and what to do."""
