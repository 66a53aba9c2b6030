"""Answer to `python3 -m compliance`, the name that `temper compliance` had until release 0.9."""

from temper.cli.main import former

if __name__ == "__main__":
    raise SystemExit(former("compliance"))
