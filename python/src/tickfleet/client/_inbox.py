"""How far an inbox was read. It knows no Redis, so that what it decides can be seen at once.

What was read can be less than was thought: a Redis that has lost its last writes, and whose clock is behind the one before,
numbers its next entries below those that were read already. So a reader looks back where it hears nothing or where replies
are missing, and removes by name what it has read, not all that is older.
"""

from __future__ import annotations

from dataclasses import dataclass, field

COUNT = 128
"""Entries taken at once."""

BLOCK_MS = 5_000
"""One blocking read lasts this long at most."""

BEGINNING = "0-0"
"""Before every entry."""


@dataclass(frozen=True)
class Entry:
    """A reply as it stands in the inbox."""

    id: str
    seq: int
    """From 1 without gaps; 0 where the entry has none."""
    reply: str
    missed: int = 0
    """Replies that are missing before it."""


@dataclass
class Inbox:
    """Where a reader of one inbox stands."""

    key: str
    last: str = BEGINNING
    seq: int = 0
    kept: set[str] = field(default_factory=set)
    """Entries that were read and are not removed yet."""
    looks_back: bool = False

    def fresh(self, found: list[Entry]) -> list[Entry]:
        """Those of the entries that were not read yet, each with what is missing before it. From here on they are read."""
        if not found:
            return []
        self.last = found[-1].id
        unread = [entry for entry in found if entry.id not in self.kept]
        self.kept.update(entry.id for entry in unread)
        told, follows = [], True
        for entry in unread:
            # The first that is read shows no gap, and neither does an inbox that was made anew and counts from 1 again.
            missed = max(0, entry.seq - self.seq - 1) if self.seq else 0
            follows = follows and (self.seq == 0 or entry.seq == self.seq + 1)
            told.append(Entry(entry.id, entry.seq, entry.reply, missed))
            self.seq = entry.seq
        if self.looks_back:
            self.looks_back = len(found) >= COUNT
        elif not follows:
            # What is missing may stand before the entries that were read.
            self.look_back()
        return told

    def look_back(self) -> None:
        """Reads from the beginning next."""
        self.last, self.looks_back = BEGINNING, True

    def is_behind(self, newest: str | None) -> bool:
        """Whether the newest entry, where nothing new was heard, was not read."""
        return newest is not None and newest not in self.kept

    def removed(self, ids: list[str]) -> None:
        """Forgets entries that are no longer in the inbox."""
        self.kept.difference_update(ids)


def entry_of(id: str, fields: dict[str, str]) -> Entry:
    """An entry by the fields that Redis gives."""
    seq = fields.get("seq", "")
    return Entry(id, int(seq) if seq.isdecimal() else 0, fields.get("reply", ""))
