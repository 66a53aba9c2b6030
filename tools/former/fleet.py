"""Answer to `python3 -m fleet`, the name that `temper fleet` had until release 0.9."""

from temper.cli.main import former

if __name__ == "__main__":
    raise SystemExit(former("fleet"))
