"""What crosses a border: resource types, names and the gRPC contract."""
