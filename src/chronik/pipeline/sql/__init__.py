"""SQL over topics: every topic is a table by its name, what has landed from Delta and the rest from the live log.

| Module | What lives there |
|---|---|
| `topic_views` | a view per topic that a query names, fixed to one version and one end of the log |
| `live_reader` | the live part of a view: records that have not landed, by the rules of the table |
| `sampling` | columns of JSON values that have not landed |
| `engine` | the process that keeps Spark warm: queries over loopback, with a token |
| `engine_client` | finding, starting and asking that process; imports no Spark |
| `caller_watch` | a query whose caller has left is cancelled |
| `process_identity` | whether a process is still the one that it was |
| `connect_server` | `chronik pipeline connect`: topics for notebooks |
| `statements` | where the statements of a script end |
| `answers` | rows as JSON values between the two |
| `sql_errors` | what a person is told when a query fails |
"""
