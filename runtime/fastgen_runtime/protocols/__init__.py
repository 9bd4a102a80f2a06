"""HTTP and gRPC: requests from the wire, answers onto it."""
