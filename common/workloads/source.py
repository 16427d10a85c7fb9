"""Rows of a workload's source, before any tokenizer is needed: files, a data set of the hub, or generated."""

import difflib
from collections.abc import Iterator
from pathlib import Path

from common.config_workload import JSONL, WorkloadConfig
from common.errors import ConfigError, DataError, explain
from common.rewards.checkers import gold_fault
from common.workloads import gsm8k, jsonl, lsat_ar, math500, olympiad, reasoning_gym, scibench
from common.workloads.files import read_files
from common.workloads.hub import read_data_set
from common.workloads.records import BadGold, Record
from common.workloads.rows import LeftOut, Row, Schema, Source

SCHEMA_OF: dict[str, Schema] = {
    "lsat_ar": lsat_ar.SCHEMA,
    "sci_xw": scibench.SCHEMA,
    "sci_jl": scibench.SCHEMA,
    "olyphys": olympiad.SCHEMA,
    "gsm8k": gsm8k.SCHEMA,
    "math500": math500.SCHEMA,
    JSONL: jsonl.SCHEMA,
}


def read_rows(config: WorkloadConfig, *, needs_gold: bool = True) -> Source:
    """All rows, and what was left out. Without `needs_gold` rows may have no answer, and the checker is not asked to read it.

    Raises ConfigError for settings, DataError for rows (they are named) and where no row is left.
    """
    if config.is_generated:
        return Source(rows=list(reasoning_gym.generate_rows(config)))
    schema = SCHEMA_OF[config.name]
    _check_fields(config, schema)
    source = Source()
    for record in _chosen(config, source, _records(config, schema, needs_gold=needs_gold)):
        try:
            row = schema.read(record)
            if isinstance(row, Row) and record.needs_gold:
                _check_gold(row)
        except BadGold:
            if config.on_bad_gold == "stop":
                raise
            source.bad_golds.append(record.place)
            continue
        if isinstance(row, LeftOut):
            source.leave_out(row)
        else:
            source.rows.append(row)
    source.rows.sort(key=lambda row: row.rank)
    if not source.rows:
        reasons = [*source.left_out, *(["answers that cannot be read"] if source.bad_golds else [])]
        rule = f"must hold a row that can be used: all {source.num_read} were left out ({'; '.join(reasons)})"
        raise DataError(explain("workload", rule, config.path or config.dataset, "give another file, or other settings"))
    return source


def _records(config: WorkloadConfig, schema: Schema, *, needs_gold: bool) -> Iterator[Record]:
    found = read_files(Path(config.path)) if config.path is not None else read_data_set(config)
    for place, values in found:
        yield from schema.split(Record(place=place, values=values, config=config, needs_gold=needs_gold))


def _chosen(config: WorkloadConfig, source: Source, records: Iterator[Record]) -> Iterator[Record]:
    """Those with a value that `where` lists. Raises DataError where a listed value is in no row: it is misspelt, most likely."""
    seen: dict[str, set[str]] = {name: set() for name in config.where}
    for record in records:
        is_chosen = True
        for name, wanted in config.where.items():
            value = _value(record, name)
            seen[name].add(value)
            if value not in set(map(_comparable, wanted)):
                source.leave_out(LeftOut(record.place, f"{name} is not in workload.where.{name}"))
                is_chosen = False
                break
        if is_chosen:
            yield record
    for name, wanted in config.where.items():
        for one in wanted:
            if (value := _comparable(one)) not in seen[name]:
                raise DataError(explain(f"workload.where.{name}", "must be the value of a row", one, _near(value, seen[name])))


def _value(record: Record, name: str) -> str:
    if name not in record.values:
        rule = f"must have the field {name}"
        raise DataError(explain(record.place, rule, sorted(record.values), f"add it, or remove workload.where.{name}"))
    return _comparable(record.values[name])


def _comparable(value: object) -> str:
    """As text, in which 5, 5.0 and "5" are the same, and so are true and "true"; true is not 1."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def _near(word: str, words: set[str]) -> str:
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    listed = ", ".join(sorted(words)[:12])
    return f"did you mean {near[0]}?" if near else f"the rows have {listed}"


def _check_fields(config: WorkloadConfig, schema: Schema) -> None:
    for name in config.fields:
        if name not in schema.fields:
            rule = f"must be a field of {config.name}'s schema ({', '.join(schema.fields)})"
            raise ConfigError(explain("workload.fields", rule, name, "write {schema's name: file's name}"))


def _check_gold(row: Row) -> None:
    fault = gold_fault(row.task)
    if fault is not None:
        remedy = "repair the row, or set workload.on_bad_gold=skip"
        raise BadGold(explain(row.place, f"must have an answer that can be checked ({fault})", row.gold, remedy))
