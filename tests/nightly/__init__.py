"""What takes hours: everything that `make test` leaves out, in one run."""
