"""What passes between a device and its server: bounded counts, bounded deltas, a few new words, new models. Never audio
or transcripts. Imports nothing, so that an app which never checks in loads none of it."""
