"""The command `temper`: what an operator types on the controller, beside ansible-playbook."""
