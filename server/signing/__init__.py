"""What devices may install, as signed metadata of The Update Framework (TUF), over the registry of models.

The root role belongs to offline keys; targets, snapshot and timestamp are signed here, by online keys that a new root
can take away. :mod:`server.signing.roots` works on a folder and needs no server;
:class:`~server.signing.repository.Repository` signs and serves."""
