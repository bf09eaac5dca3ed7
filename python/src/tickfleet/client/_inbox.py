"""The read position in an inbox. This module does not access Redis, so that its decisions are easy to follow.

A position can be ahead of the inbox: if Redis has lost its last writes, and its clock is now behind the time of those
writes, new entries get lower numbers than entries that were already read. A reader therefore starts again if it
receives nothing or if replies are missing. It removes replies by their entries instead of by age.
"""

from __future__ import annotations

from dataclasses import dataclass, field

COUNT = 128
"""Maximum number of entries in one read."""

BLOCK_MS = 5_000
"""Maximum duration of a blocking read, in milliseconds."""

BEGINNING = "0-0"
"""The position before every entry."""


@dataclass(frozen=True)
class Entry:
    """A reply in the inbox."""

    id: str
    seq: int
    """From 1 without gaps; 0 if the entry has no number."""
    reply: str
    missed: int = 0
    """Number of missing replies before this entry."""


@dataclass
class Inbox:
    """The read position in one inbox."""

    key: str
    last: str = BEGINNING
    seq: int = 0
    kept: set[str] = field(default_factory=set)
    """Entries that were read and not removed yet."""
    is_rewinding: bool = False

    def fresh(self, found: list[Entry]) -> list[Entry]:
        """Returns the entries that are new, each with the number of missing replies before it, and marks them as
        read."""
        if not found:
            return []
        self.last = found[-1].id
        unread = [entry for entry in found if entry.id not in self.kept]
        self.kept.update(entry.id for entry in unread)
        fresh, follows = [], True
        for entry in unread:
            # Before the first reply, and in a recreated inbox with numbers from 1 again, no reply is missing.
            missed = max(0, entry.seq - self.seq - 1) if self.seq else 0
            follows = follows and (self.seq == 0 or entry.seq == self.seq + 1)
            fresh.append(Entry(entry.id, entry.seq, entry.reply, missed))
            self.seq = entry.seq
        if self.is_rewinding:
            self.is_rewinding = len(found) >= COUNT
        elif not follows:
            # The missing replies may be at positions before the entries that were read.
            self.rewind()
        return fresh

    def rewind(self) -> None:
        """Continues to read from the start."""
        self.last, self.is_rewinding = BEGINNING, True

    def is_behind(self, newest: str | None) -> bool:
        """Returns whether the newest entry has not been read, after a read that returned nothing."""
        return newest is not None and newest not in self.kept

    def removed(self, ids: list[str]) -> None:
        """Drops entries that are no longer in the inbox."""
        self.kept.difference_update(ids)


def entry_of(id: str, fields: dict[str, str]) -> Entry:
    """Parses an entry from its Redis fields."""
    seq = fields.get("seq", "")
    return Entry(id, int(seq) if seq.isdecimal() else 0, fields.get("reply", ""))
