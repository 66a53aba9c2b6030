"""The reports that people look at: a made-up fleet, and tests of its pages, also in a real Chromium."""
