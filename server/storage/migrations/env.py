"""Alembic's entry: runs on the connection that :class:`server.storage.database.Database` hands over."""

from alembic import context

from server.storage.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
context.run_migrations()
