"""`python -m chronik` is the `chronik` command."""

from chronik.cli.main import main

main()
