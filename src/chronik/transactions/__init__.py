"""Producer ids, transactional state machines, the transaction coordinator and its markers."""
