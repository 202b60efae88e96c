"""Graph-to-graph passes. Each takes a graph and returns a new one; callers verify the result."""
