"""Generates the reference pages beside this file that need no Rust build.

    python3 docs/reference/generate.py           writes the pages
    python3 docs/reference/generate.py --check   exits with 1 if a page is out of date

Sources: config/schema/*.json, the chart, shared/model/src/limits.rs, the Python package and the TypeScript package. The other
reference pages come from tests: TICKFLEET_WRITE_DOCS=1 cargo test -p tickfleet --lib reference. Standard library only.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "generators"))

import chart  # noqa: E402
import configuration  # noqa: E402
import constants  # noqa: E402
import python_api  # noqa: E402
import typescript_api  # noqa: E402

PAGES = {
    "settings.md": configuration.settings,
    "configuration-files.md": configuration.files,
    "alerts.md": chart.alerts,
    "helm-values.md": chart.values,
    "limits-and-defaults.md": constants.page,
    "python-api.md": python_api.page,
    "typescript-api.md": typescript_api.page,
}
HEAD = "<!-- Generated; to regenerate: python3 docs/reference/generate.py -->\n"


def main():
    stale = []
    for name, page in PAGES.items():
        path, text = os.path.join(HERE, name), HEAD + page(ROOT).strip() + "\n"
        current = None
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                current = file.read()
        if current != text:
            stale.append(name)
            if sys.argv[1:] != ["--check"]:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
    if sys.argv[1:] == ["--check"]:
        sys.exit(f"out of date: {', '.join(stale)}; run python3 docs/reference/generate.py" if stale else None)
    print(f"{len(stale)} pages written")


if __name__ == "__main__":
    main()
