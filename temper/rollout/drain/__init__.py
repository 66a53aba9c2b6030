"""Taking a node out of service and returning it: what every scheduler can do, in one protocol.

base         what it is, and what a node's standing was before
programs     the scheduler's own programs, bounded in time
slurm        scontrol and squeue
kubernetes   kubectl
commands     commands of the operator, and no scheduler at all
"""
