"""The operations on NVIDIA GPUs, in Triton."""
