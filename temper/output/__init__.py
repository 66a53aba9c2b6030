"""The text of a run, as the operator sees it: fed by plugins/callback/temper.py."""
