"""One module per API or family of APIs, each opening with the versions it speaks."""
