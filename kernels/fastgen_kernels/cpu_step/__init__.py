"""The whole forward step of a decoder as one C++ op, compiled for a model's shape and the CPU."""
