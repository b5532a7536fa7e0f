"""Client updates a second of simulated cohorts, with clipping and noise, beside pfl on the same clients and network.

One thread, by the processor's time, ours and pfl's in turn, the better of each, both with an allocator that keeps what
is freed, as :func:`server.lab.simulation.engine.rounds.run_rounds` has it. pfl runs in an environment of its own
(``make peers``), whose interpreter ``IDIOLECT_PEERS`` names. Then rounds of up to 10,000 clients: time a client, and
memory."""

from time import process_time
from typing import Any

from device_sdk.benchmarks import Figure
from device_sdk.benchmarks.memory import peak_megabytes
from server.lab.benchmarks.children import KEEPING, run_child, run_peer

COHORT, EXAMPLES, SECONDS, TURNS = 50, 10, 2.0, 2
FEW, MANY = 1_000, 10_000
TARGETS = {1: 5.0, 5: 1.5}
NETWORK = "an MLP of 97,081 parameters"
GROWTH, TIME = 1.1, 1.25
UNIT = "client updates/s of CPU"


def benchmark() -> list[Figure]:
    """Figures of cohorts of 50 clients with 10 examples each, and of large ones."""
    ours: dict[str, float] = {}
    theirs: dict[str, float] = {}
    for _ in range(TURNS):
        ours = _better(ours, run_child(__name__, "measure", KEEPING))
        theirs = _better(theirs, run_peer("cohort", (COHORT, EXAMPLES, SECONDS), KEEPING) or {})
    figures = []
    for steps, target in TARGETS.items():
        key = str(steps)
        metric = f"{NETWORK}, {steps} local step{'s' if steps > 1 else ''}, clipping and noise"
        peer = ("pfl", 1 / theirs[key], target) if key in theirs else ()
        figures.append(Figure(metric, UNIT, 1 / ours[key], *peer))
    large = run_child(__name__, "scaling")
    for what, name, target in (
        (f"CPU of a client in a round of {MANY:,}, over one in a round of {FEW:,}", "", TIME),
        (f"memory at most in a round of {MANY:,}, over one of {FEW:,}", "peak_", GROWTH),
    ):
        ratio = large[f"{name}many"] / large[f"{name}few"]
        figures.append(Figure(what, "times", ratio, target=target, lower_is_better=True))
    return figures


def measure() -> dict[str, float]:
    """Local steps -> seconds of CPU for one update. Run in a process of its own, for its threads."""
    from server.lab.simulation.engine.rounds import apply, init

    found = {}
    for steps in TARGETS:
        run = _engine(steps, COHORT, 200)
        state = apply(run, init(run))
        begun, rounds = process_time(), 0
        while not rounds or process_time() - begun < SECONDS:
            state = apply(run, state)
            rounds += 1
        found[str(steps)] = (process_time() - begun) / (rounds * COHORT)
    return found


def scaling() -> dict[str, float]:
    """Seconds of CPU for one client in small rounds and in a large one, and MB at most after each."""
    from server.lab.simulation.engine.rounds import apply, init

    found = {}
    for name, cohort in (("few", FEW), ("many", MANY)):
        run = _engine(1, cohort, MANY)
        state = apply(run, init(run)) if name == "few" else init(run)
        begun = process_time()
        apply(run, state)
        found[name] = (process_time() - begun) / cohort
        found[f"peak_{name}"] = peak_megabytes()
    return found


def _engine(steps: int, cohort: int, clients: int) -> Any:
    import torch

    from server.lab.simulation.engine.population import Held
    from server.lab.simulation.engine.rounds import engine
    from server.lab.simulation.engine.settings import EngineSettings, LocalWork, Privacy
    from server.lab.simulation.engine.tasks import Classification, perceptron

    torch.set_num_threads(1)
    torch.manual_seed(0)
    distinct = [(torch.randn(EXAMPLES, 64), torch.randint(57, (EXAMPLES,))) for _ in range(200)]
    settings = EngineSettings(
        cohort=cohort,
        local=LocalWork(kind="steps", count=steps, batch=EXAMPLES, learning_rate=0.1),
        privacy=Privacy(clip_norm=0.5, noise_multiplier=1.0),
        group=50,
    )
    return engine(
        settings,
        Classification(perceptron([64, 256, 256, 57])),
        Held([distinct[client % 200] for client in range(clients)]),
    )


def _better(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {key: min(value, one.get(key, value)) for key, value in other.items()}
