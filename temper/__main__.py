"""`python3 -m temper`, where the command `temper` is not on PATH."""

from temper.cli.main import main

raise SystemExit(main())
