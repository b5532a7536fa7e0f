"""The server's side of secure aggregation: it passes on what devices deal to each other and unmasks their sum."""
