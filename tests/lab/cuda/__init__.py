"""A stand-in for CUDA under the real CUDA builds of torch.

docs/explain/lab.md says what it shows and what it cannot show.
"""
