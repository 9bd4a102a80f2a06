"""The kernels inside other people's programs: transformers and vLLM."""
