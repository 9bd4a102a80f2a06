"""A real Kubernetes on this machine, for `make demo` and the tests."""

from fastgen_devcluster.cluster import Cluster, audit_log_path

__all__ = ["Cluster", "audit_log_path"]
