"""What one machine carries: a server with a large fleet in its database, under the load of devices that sign."""
