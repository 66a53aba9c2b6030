"""The report that people look at, of a fleet's validation, its compliance, or both: HTML without a network.

It runs on the controller. Each module imports only from those above it in this list:

    inputs      what a report is made from
    past        earlier numbers from the history of validation
    words       how numbers, conditions and states are written
    svg         charts as text
    metrics     the fleet's numbers by metric: distributions, and what each number stands beside
    changes     what is another than last time
    advice      what measurements recommend to whoever trains here
    node        what a page of a node shows
    fleet       what the page of a fleet shows
    write       templates and files
"""
