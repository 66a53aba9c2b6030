"""`python -m validation`, and what the one-file build starts. Any Python must be able to read this file."""

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - this says so to an older one
    found = "%d.%d" % sys.version_info[:2]  # noqa: UP031 - as above
    sys.stderr.write("validation: it needs Python 3.10 or newer, " + sys.executable + " is " + found + "\n")
    raise SystemExit(2)

from validation.cli.main import main

raise SystemExit(main())
