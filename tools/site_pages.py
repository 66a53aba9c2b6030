"""Choose what the site has: the repository's Markdown files and what they link to, at their own places.

A hook of mkdocs (mkdocs.yml). So one relative link is right in a checkout and on the site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files, InclusionLevel

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md", "roles/*/README.md")
#: Pages that other pages lead to, and the navigation does not.
WITHOUT_NAVIGATION = re.compile(r"roles/|docs/explain/decisions/\d")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def linked(page: Path) -> Iterator[Path]:
    """Yield the files, no pages, to which a page links."""
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        if path.is_file() and path.suffix != ".md":
            yield path


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Replace the files of docs_dir by those of the repository; keep the theme's and docs/javascripts."""
    root = Path(config.docs_dir).parent
    pages = {page for pattern in PAGES for page in root.glob(pattern)}
    for file in [one for one in files if one.is_documentation_page() or one.src_uri.startswith("images/")]:
        files.remove(file)
    for path in sorted(pages | {path for page in pages for path in linked(page)}):
        uri = path.relative_to(root).as_posix()
        file = File.generated(config, uri, abs_src_path=str(path))
        if WITHOUT_NAVIGATION.match(uri):
            file.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(file)
    return files
