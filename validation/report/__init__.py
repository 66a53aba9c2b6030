"""What people and programs read: progress and reports."""
