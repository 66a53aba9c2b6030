"""What the other packages of the controller stand on."""
