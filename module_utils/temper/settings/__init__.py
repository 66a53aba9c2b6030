"""Settings of a node: one class for each kind, and the engine that carries them out."""
