"""Container engines and NVIDIA's runtime: what the module container_engine is made of."""
