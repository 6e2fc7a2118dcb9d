"""The `chronik` command: noun-verb, one module per noun."""
