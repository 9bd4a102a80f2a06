"""A real Kubernetes on this machine, for `make demo` and the tests."""
