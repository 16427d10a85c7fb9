"""One record of a file or data set, and its fields checked as they are read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.config_workload import JSONL, WorkloadConfig
from common.errors import DataError, explain, is_finite


class BadGold(DataError):
    """A row's answer cannot be read: `workload.on_bad_gold` says what then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The fields of one record. They are asked for by the schema's names; messages show the file's."""

    place: str
    values: Mapping[str, Any]
    config: WorkloadConfig
    needs_gold: bool = True
    is_part: bool = False  # of another record

    def name(self, field: str) -> str:
        """What the file calls the schema's `field`."""
        if self.config.name == JSONL:
            return str(getattr(self.config, _SETTINGS[field]))
        return self.config.fields.get(field, field)

    def part(self, place: str, values: Mapping[str, Any]) -> "Record":
        """A record within this one."""
        return replace(self, place=f"{self.place}.{place}", values=values, is_part=True)

    def has(self, field: str) -> bool:
        """The field is there and not null."""
        return self.values.get(self.name(field)) is not None

    def value(self, field: str, error: type[DataError] = DataError) -> Any:
        """Raises `error` where the field is missing."""
        name = self.name(field)
        if name not in self.values:
            setting = f"workload.{_SETTINGS[field]}" if self.config.name == JSONL else f"workload.fields.{field}"
            rule = f"must have the field {name}"
            remedy = f"add it, or name the right one in {setting}"
            if self.config.path is not None and Path(self.config.path).is_dir():
                remedy += ", or one file of the directory in workload.path"
            raise error(explain(self.place, rule, sorted(self.values), _remedy(remedy, error)))
        return self.values[name]

    def text(self, field: str, error: type[DataError] = DataError) -> str:
        """Text that is not blank, or a finite number as text; `error` where it is neither."""
        value = self.value(field, error)
        is_number = is_finite(value) and not isinstance(value, bool)
        if not (is_number or isinstance(value, str)) or not str(value).strip():
            raise self.fault(field, "must be text or a number", error=error)
        return _encodable(self, field, str(value), error)

    def optional_text(self, field: str) -> str:
        """Text without blanks around it; empty where the field is missing, null or blank."""
        value = self.values.get(self.name(field))
        return "" if value is None or (isinstance(value, str) and not value.strip()) else self.text(field).strip()

    def gold_text(self, field: str) -> str | None:
        """Text of the answer without blanks around it; None where it is missing and not needed. Raises BadGold."""
        return self.text(field, BadGold).strip() if self.needs_gold or self.has(field) else None

    def texts(self, field: str, error: type[DataError] = DataError) -> list[str]:
        """A list of texts, none of them blank."""
        value = self.value(field, error)
        if not isinstance(value, list) or not value or not all(isinstance(one, str) and one.strip() for one in value):
            raise self.fault(field, "must be a list of texts", error=error)
        return [_encodable(self, field, one, error) for one in value]

    def fault(self, field: str, rule: str, remedy: str = "repair the row", error: type[DataError] = DataError) -> DataError:
        """An error that names the record and the field."""
        value = self.values.get(self.name(field))
        shown = value if len(repr(value)) <= 200 else f"{value!r:.200}..."
        return error(explain(self.place, f"{self.name(field)} {rule}", shown, _remedy(remedy, error)))


_SETTINGS = {"question": "question_field", "answer": "answer_field"}  # of jsonl


def _remedy(remedy: str, error: type[DataError]) -> str:
    return f"{remedy}, or set workload.on_bad_gold=skip" if issubclass(error, BadGold) else remedy


def _encodable(record: Record, field: str, text: str, error: type[DataError]) -> str:
    """Half of a surrogate pair, which JSON can spell, is in no tokenizer's text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise record.fault(field, "must be Unicode text (a surrogate stands alone)", error=error) from None
    return text
