"""Tell people when a scheduled check changes state: by webhook, by mail.

It runs on the controller. Each module imports only from those above it in this list:

  settings   whom to tell, and how: the operator's file
  outcome    how a check ended, from its report, and whether people have to hear of that
  told       what was told last, in the fleet's history
  channels   one message, sent
"""
