"""Answer to `python3 -m pages`, the name that `temper pages` had until release 0.9."""

from temper.cli.main import former

if __name__ == "__main__":
    raise SystemExit(former("pages"))
