"""`chronik bench`: the benchmark tool."""
