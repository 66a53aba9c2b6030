"""The text of a run, as the operator sees it: fed by callback_plugins/temper.py."""
