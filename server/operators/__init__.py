"""The people who run a server: who they are, what each may do, and what each did."""
