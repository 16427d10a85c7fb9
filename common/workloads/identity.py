"""Which problems are the same, and which are held out: by content, so that neither file order nor prompt wording matters."""

import hashlib
import json
import unicodedata

from common.workloads.rows import Row


def digest(*parts: object) -> str:
    """16 hexadecimal digits of plain JSON values."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def question_hash(row: Row) -> str:
    """Of the question alone: rows that differ in their answer share it."""
    return digest(_normal(_question(row)))


def content_hash(row: Row) -> str:
    """Of question and answer as the source has them, differences in blanks and Unicode form aside."""
    gold = row.source_gold if row.source_gold is not None else row.gold
    return digest(_normal(_question(row)), _normal(gold) if isinstance(gold, str) else gold)


def is_held_out(question: str, share: float) -> bool:
    """Whether a question of this hash is among the `share` kept for evaluation."""
    return int(digest("holdout", question), 16) < share * 2**64


def draw_key(seed: int, content: str) -> str:
    """A seeded order of problems that does not depend on the order of the file."""
    return digest("draw", seed, content)


def _question(row: Row) -> str:
    return row.question if row.source_question is None else row.source_question


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())
