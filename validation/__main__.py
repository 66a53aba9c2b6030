"""`python -m validation`, and what the one-file build starts."""

from validation.cli import main

raise SystemExit(main())
