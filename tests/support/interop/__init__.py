"""The foreign ends of the interop tests."""
