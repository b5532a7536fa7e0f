"""Cohorts of devices without HTTP: one gradient a round, taken in torch as one large batch (Rao et al. 2023, section
3).

Many thousand utterances pass through the same network, losses, feedback and server optimizer as real devices use, so
whole tables of a paper become affordable. What a device is (state, reports, check-in) is the fleet's business."""
