"""Answer to `python3 -m rollout`, the name that `temper rollout` had until release 0.9."""

from temper.cli.main import former

if __name__ == "__main__":
    raise SystemExit(former("rollout"))
