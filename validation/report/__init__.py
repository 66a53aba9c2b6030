"""What people and programs read: progress, reports, JSON schemas."""
