"""Container engines and NVIDIA's runtime: see engine_settings.py."""
