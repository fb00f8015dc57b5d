"""The load test: requests by a schedule, from a process of its own, measured and judged level by level."""
