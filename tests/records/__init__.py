"""Records of what two checkouts do, compared to the last bit: that a rearrangement of files has changed nothing.

    python -m tests.records BEFORE AFTER

Recordings are recognized, a device learns, a server and two devices publish a round, and every page of help is printed,
once from each folder. What is random comes from a fixed stream and the clock stands still (:mod:`fixed.sitecustomize`).
:mod:`tests.records.probe` names nothing that a rearrangement may rename: what ``device_sdk`` exports, commands, routes.
"""
