"""Builds the documentation as a site with search and diagrams, by mdBook.

    python3 docs/site/build.py [FOLDER]         the site is in FOLDER/book; default target/site
    python3 docs/site/build.py --check          checks that SUMMARY.md has every page, and only pages

Pages keep their paths, so their links work in the repository and on the site. Linked files that are not pages, such
as a configuration, are copied. A linked folder gets a page that lists its files. Then every link of the site is
checked. Except for --check, needs mdbook and mdbook-mermaid (cargo install mdbook mdbook-mermaid --locked). If
there are problems, prints them and exits with 1.
"""

import html
import html.parser
import os
import re
import shutil
import subprocess
import sys
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# Markdown files in these folders are not pages.
NO_PAGES = ("helm/", "docs/site/", "docs/snippets/", "cli/", ".github/")
# GitHub expects the security policy at this path.
SECURITY = ".github/SECURITY.md"
PROGRAMS = ("mdbook", "mdbook-mermaid")
SKIPPED = {"target", "node_modules", "dist", "__pycache__", ".venv"}


def files(folder):
    """Yields the files below a folder of the project, as paths from the project's root."""
    for place, folders, names in os.walk(os.path.join(ROOT, folder)):
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        yield from (os.path.normpath(os.path.relpath(os.path.join(place, name), ROOT)) for name in sorted(names))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def summary():
    """Returns SUMMARY.md with its links relative to the project's root, and its pages in order."""
    pages = []

    def from_root(match):
        pages.append(os.path.normpath(os.path.join("docs/site", match[1])))
        return f"]({pages[-1]})"

    text = re.sub(r"\]\(([^)]+)\)", from_root, read("docs/site/SUMMARY.md"))
    return text, pages


def check():
    """Returns a problem for each page that is missing in SUMMARY.md, is listed twice, or does not exist."""
    _, pages = summary()
    there = {path for path in files("") if path.endswith(".md") and not path.startswith(NO_PAGES)} | {SECURITY}
    # SUMMARY.md need not list the architecture decisions, because their own index lists them.
    there -= {path for path in there if re.match(r"docs/adr/\d", path)}
    wrong = [f"SUMMARY.md does not have {path}" for path in sorted(there - set(pages))]
    wrong += [f"SUMMARY.md has {path}, which is no page" for path in sorted(set(pages) - there)]
    return wrong + [f"SUMMARY.md has {path} twice" for path in sorted(set(pages)) if pages.count(path) > 1]


def linked(path):
    """Yields the files and folders of the project to which a page links."""
    text = re.sub(r"^( *)```.*?^\1```", "", read(path), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[[^\]]+\]: (\S+)", text, flags=re.MULTILINE):
        if not re.match(r"[a-z]+:|#", target):
            yield os.path.normpath(os.path.join(os.path.dirname(path), target.split("#")[0]))
    for target in re.findall(r"\{\{#include ([^}:]+)", read(path)):
        yield os.path.normpath(os.path.join(os.path.dirname(path), target))


def copy(path, out):
    target = os.path.join(out, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(os.path.join(ROOT, path), target)


def listing(folder):
    """Returns a page that lists the content of a folder."""
    names = [os.path.relpath(path, folder) for path in files(folder)]
    rows = "".join(f'<li><a href="{urllib.parse.quote(name)}">{html.escape(name)}</a></li>' for name in names)
    title = html.escape(folder)
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><h1>{title}</h1><ul>{rows}</ul></html>\n'


def lay_out(out):
    """Writes all input of mdBook below `out`."""
    shutil.rmtree(out, ignore_errors=True)
    source = os.path.join(out, "src")
    os.makedirs(source)
    text, pages = summary()
    shutil.copyfile(os.path.join(HERE, "book.toml"), os.path.join(out, "book.toml"))
    decisions = sorted(path for path in files("docs/adr") if re.match(r"docs/adr/\d", path))
    rows = "".join(f"  - [{read(path).splitlines()[0].lstrip('# ')}]({path})\n" for path in decisions)
    text = re.sub(r"(^- .*\(docs/adr/README\.md\)\n)", lambda match: match[1] + rows, text, flags=re.MULTILINE)
    with open(os.path.join(source, "SUMMARY.md"), "w", encoding="utf-8") as file:
        file.write(text)
    for path in [*pages, *decisions]:
        copy(path, source)
    for target in sorted({target for path in [*pages, *decisions] for target in linked(path)} - {*pages, *decisions}):
        if os.path.isdir(os.path.join(ROOT, target)):
            for path in files(target):
                copy(path, source)
            with open(os.path.join(source, target, "index.html"), "w", encoding="utf-8") as file:
                file.write(listing(target))
        else:
            copy(target, source)
    return len(pages) + len(decisions)


class Page(html.parser.HTMLParser):
    """Collects the links and anchors of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], {""}
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors.add(attributes.get("id") or "")
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])


def dead_links(book, names):
    """Returns the links to files or headings that do not exist."""
    pages = {}

    def page(path):
        if path not in pages:
            pages[path] = Page(path)
        return pages[path]

    for name in names:
        path = os.path.join(book, name)
        for link in page(path).links:
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = urllib.parse.unquote(link).partition("#")
            end = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
            if os.path.isdir(end):
                end = os.path.join(end, "index.html")
            if not os.path.exists(end):
                yield f"{name}: {link} leads nowhere"
            elif end.endswith(".html") and anchor not in page(end).anchors:
                yield f"{name}: {link} has no such heading"


def main():
    if sys.argv[1:] == ["--check"]:
        wrong = check()
        sys.exit("\n".join(wrong) or None)
    out = os.path.abspath(sys.argv[1] if sys.argv[1:] else os.path.join(ROOT, "target/site"))
    wrong = check()
    count = lay_out(out)
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        sys.exit(f"{count} pages are laid out in {out}; to build the site: cargo install {' '.join(missing)} --locked")
    # Adds the scripts that draw diagrams to the folder, and names them in the copy of book.toml.
    subprocess.run(["mdbook-mermaid", "install", out], check=True)
    subprocess.run(["mdbook", "build", out], check=True)
    book = os.path.join(out, "book")
    _, pages = summary()
    wrong += dead_links(book, [path.removesuffix(".md") + ".html" for path in pages])
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{count} pages: {os.path.join(book, 'index.html')}")


if __name__ == "__main__":
    main()
