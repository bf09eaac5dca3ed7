"""Checks the language of pages (obscure words, long sentences, headings). Also checks texts in code that users see:
logs, errors, output, help, the console.

    python3 docs/site/language.py [FILE…]     default: every page, and all code of the product

Exits with 1 and a line for each problem. Standard library only.
"""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Maximum words per sentence. Code and links count as one word.
SENTENCE_MAX = 32
# Each pattern for unwanted words, with the words to use instead.
BANNED = {
    r"\b(nobody|somebody|whoever)\b": "name the actor",
    r"\b(is|are|was|were|be) told\b|\btells? of\b|\bhears?\b": "returns, reports, receives",
    r"\banew\b": "again",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bgoes? on\b(?! (to|in|at|a|the)\b)": "continues",
    r"\b(becomes?|comes?|came) of\b": "name the result",
    r"\bstands? (behind|there|before|beside|in|at|under|by|elsewhere)\b": "is",
    r"\b(that one|such a one|such ones|those who)\b": "repeat the noun",
    r"\bnot good\b": "invalid, expired",
    r"\bput aside\b": "quarantined",
    r"^(What|Who|Whose|Where) (is|was|has|may|holds|asks|comes|becomes|must|can) [^?]*$": "start with a noun or a verb",
    r"[a-z], for (it|they|the|its|no|what|there|each|every|that|this)\b": "because",
}
# Folders with texts that users see.
PRODUCT = ("cli/src/", "cli/gateway/src/", "scheduler/src/", "shared/", "typescript/src/", "worker/")
NO_PRODUCT = re.compile(r"/tests?/|tests\.rs$|tests_\w+\.rs$|/examples/|^shared/testkit/")
# Texts for models that test suites quote, and data of the demo.
ALLOWED = ("There is no tool called {name:?}.", "WHO MAY CALL")
# Words that are capitalized in headings.
NAMES = set(
    "Tickfleet Redis Kubernetes Helm Docker Compose Prometheus Grafana Python TypeScript Rust Node OpenAI Anthropic Gemini "
    "LangGraph LangChain Pydantic Vercel Temporal Sentinel Cluster Valkey Azure Upstash ElastiCache MemoryDB Memorystore "
    "Claude Desktop Code Cursor Linux Debian GitHub Markdown Agents Semantic Versioning I".split()
)


def pages():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "*.md"], capture_output=True, text=True, check=True)
    return listed.stdout.split()


def code():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", *PRODUCT], capture_output=True, text=True, check=True)
    return [path for path in listed.stdout.split() if path.endswith((".rs", ".js", ".ts")) and not NO_PRODUCT.search(path)]


def texts(path):
    """Yields the texts of a source file with at least three words, each with its line number. Skips tests and
    comments."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        source = re.split(r"#\[cfg\(test\)\]\n(?:#\[.*\]\n)*(?:pub\S* )?mod \w+ \{", file.read())[0]
    source = re.sub(r"(?m)^[ \t]*(//|\*|/\*).*$", "", source)
    quoted = r'"((?:[^"\\]|\\.)*)"' if path.endswith(".rs") else r'"([^"\n]*)"|`([^`]*)`'
    for match in re.finditer(quoted, source, re.DOTALL):
        text = re.sub(r"\\\n\s*", "", match[1] or (match[2] if match.lastindex == 2 else "") or "")
        if len(text.split()) >= 3 and text not in ALLOWED:
            yield source.count("\n", 0, match.start()) + 1, text


def plain(line):
    """Removes code, link targets, comments and emphasis from a line."""
    line = re.sub(r"<!--.*?-->", "", line)
    line = re.sub(r"`[^`]*`", "code", line)
    line = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", line)
    return re.sub(r"[*_]{1,2}", "", line).strip()


def problems(path):
    fenced = False
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if re.match(r"\s*(```|~~~)", line):
                fenced = not fenced
                continue
            if fenced or line.startswith("<!--"):
                continue
            text = plain(line)
            for pattern, instead in BANNED.items():
                if found := re.search(pattern, text, re.IGNORECASE):
                    yield f"{path}:{number}: {found[0][:60]!r}: {instead}"
            if text.startswith("#"):
                words = re.sub(r"^\d{4}: ", "", text.lstrip("# ")).split()
                for word in words[1:]:
                    bare = re.sub(r"\W", "", word)
                    if bare[:1].isupper() and bare[1:].islower() and bare not in NAMES:
                        yield f"{path}:{number}: heading {text.lstrip('# ')!r} is not in sentence case ({word})"
                continue
            for cell in text.strip("|").split("|"):
                for sentence in re.split(r"(?<=[.!?:;])\s+", re.sub(r"^\s*([-*]|\d+\.)\s+", "", cell)):
                    count = len(sentence.split())
                    if count > SENTENCE_MAX:
                        yield f"{path}:{number}: a sentence of {count} words: {sentence[:60]}…"


def main():
    named = sys.argv[1:]
    found = [problem for path in named or pages() for problem in problems(path)]
    for path in [] if named else code():
        for number, text in texts(path):
            for pattern, instead in BANNED.items():
                if match := re.search(pattern, text, re.IGNORECASE):
                    found.append(f"{path}:{number}: {match[0][:60]!r}: {instead}")
    sys.exit("\n".join(found) or None)


if __name__ == "__main__":
    main()
