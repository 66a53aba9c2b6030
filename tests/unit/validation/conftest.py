"""Settings that the tests of the payload share."""

import hypothesis

# A busy machine is no failure: no example has a time limit.
hypothesis.settings.register_profile(
    "no deadline", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("no deadline")
