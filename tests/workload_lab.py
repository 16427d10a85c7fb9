"""Small rows of each schema, made up, and what loads them."""

import json
from pathlib import Path
from typing import Any

from common.config_workload import WorkloadConfig
from common.workloads.load import Workload, load_problems


class Letters:
    """A tokenizer of one token a character; its chat template is for those who need one."""

    bos_token_id = None
    chat_template = "{{ messages[0]['content'] }}"

    def __call__(self, text: Any, add_special_tokens: bool = True) -> dict[str, Any]:
        return {"input_ids": [self(part)["input_ids"] for part in text] if isinstance(text, list) else [ord(c) for c in text]}

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "".join(f"<{one['role']}>{one['content']}" for one in messages)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(name: str, rows: list[dict[str, Any]], folder: Path, **settings: Any) -> Workload:
    """`rows` as JSON lines, loaded; `part`, `limit` and `needs_gold` go to `load_problems`, the rest are settings."""
    given = {key: settings.pop(key) for key in ("part", "needs_gold") if key in settings}
    limit = settings.pop("limit", None)
    path = write_lines(folder / "rows.jsonl", rows)
    return load_problems(WorkloadConfig(name=name, path=str(path), **settings), Letters(), limit, **given)


def agieval(question: str = "Who sits first?", label: str = "B", options: list[str] | None = None) -> dict[str, Any]:
    texts = options or ["Ann", "Bob", "Cy", "Di", "Ed"]
    labelled = [f"({letter}){text}" for letter, text in zip("ABCDE", texts, strict=False)]
    return {
        "passage": "Five sit in a row.",
        "question": question,
        "options": labelled,
        "label": label,
        "answer": None,
        "other": None,
    }


def ar_lsat(*questions: dict[str, Any]) -> dict[str, Any]:
    return {"id": "p1", "passageId": "1", "passage": "Five sit in a row.", "questions": list(questions)}


def ar_question(question: str = "Who sits first?", answer: str = "B", options: list[str] | None = None) -> dict[str, Any]:
    return {
        "id": "p1_1",
        "question": question,
        "tags": [""],
        "options": options or ["Ann", "Bob", "Cy", "Di", "Ed"],
        "answer": answer,
    }


def scibench(number: str = "1.5", unit: str = " ", **fields: Any) -> dict[str, Any]:
    row = {"problem_text": "How much?", "answer_latex": number, "answer_number": number, "unit": unit, "source": "atkins"}
    return {**row, "problemid": " 1", "comment": " ", **fields}


def olympiad(*answers: str, **fields: Any) -> dict[str, Any]:
    row = {
        "id": 1,
        "subfield": "Optics",
        "context": None,
        "question": "How far?",
        "solution": ["So."],
        "final_answer": list(answers),
    }
    return {**row, "is_multiple_answer": False, "unit": None, "answer_type": "Numerical", "error": None, **fields}
