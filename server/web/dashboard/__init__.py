"""What operators look at: pages rendered by the server, that change nothing and hold no script."""
