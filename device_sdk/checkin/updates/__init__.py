"""What a device installs where the app gave it a root to trust: nothing but what signed metadata (TUF) vouches for."""
