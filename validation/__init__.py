"""Temper's validation payload: is this node what its GPUs promise, and can one trust the answer?

It measures a node, judges it and writes one JSON result; temper/ judges a fleet. It needs Python 3.10 and,
for what is measured rather than read, torch; nothing else. `python -m validation --help` says how;
docs/operate/validation.md says what.

Each folder imports only from folders above it in this list, and no module imports itself in a circle. That
holds for late imports and for those of types, too; a contract of import-linter (pyproject.toml) checks it.

    model       what every folder speaks of: results and their JSON form, plans, expectations, numbers, shapes
    findings    the catalogue of findings: a code and facts become a sentence with severity and remedy
    processes   programs, measuring processes, files, within bounds
    probes      what is read from a node: machine, driver, nvidia-smi, links, counters, kernel log
    backends    where a measurement runs (CPU, CUDA, storage), and how something is timed
    checks      the tests, one a module, and the node that they run on
    run         a plan's tests one after the other, once or for hours
    verdict     the verdict on GPUs and nodes, and what sums verdicts up
    fabric      a node's part in a measurement between nodes: orders, collectives
    autotune    settings of this node tried in pairs of trials, and those kept that are worth it
    jobs        training jobs of the user's own: the batch that fits, and the fastest
    metrics     what monitoring records of a node: its health
    report      what people and programs read: progress, reports, JSON schemas
    cli         the command line, and the one-file build
"""
