"""What monitoring records: a node's health, and a fleet's verdicts, as metrics of Prometheus."""
