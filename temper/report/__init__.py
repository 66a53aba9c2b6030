"""The report that people look at, of a fleet's validation, its compliance, or both: HTML without a network.

It runs on the controller. Each module imports only from those above it in this list:

    origin      the fleet, its inventories, the controller, the groups of its nodes
    inputs      what a report is made from
    past        earlier numbers from the history of validation
    words       how numbers, conditions and states are written
    svg         charts as text
    metrics     the fleet's numbers by metric: distributions, and what each number stands beside
    changes     what is another than last time
    advice      what measurements recommend to whoever trains here
    to_do       what to do about a node that is not good
    node        what a page of a node shows
    fleet       what the page of a fleet shows
    write       templates and files
"""
