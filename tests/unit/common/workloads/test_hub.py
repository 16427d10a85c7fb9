"""Data sets through the library `datasets`: local directories for real, and a hub that is out of reach."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from common.config_workload import WorkloadConfig
from common.errors import ConfigError, DataError
from common.workloads.load import load_problems
from tests.workload_lab import Letters, olympiad, scibench, write_lines

ROOT = Path(__file__).parents[4]
GSM8K = [{"question": f"How many, {number}?", "answer": f"So.\n#### {number}"} for number in range(6)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library keeps what it has read: here within the test's folder."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    import datasets

    path.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(rows).to_parquet(path)


def load(name: str, folder: Path, **settings: Any) -> Any:
    return load_problems(WorkloadConfig(name=name, dataset=str(folder), **settings), Letters())


def golds(workload: Any) -> list[Any]:
    return [problem.task["gold"] for problem in workload.problems]


def test_a_directory_of_parquet_files_gives_the_split_that_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_parquet(folder / "train-0.parquet", GSM8K[:4])
    write_parquet(folder / "test-0.parquet", GSM8K[4:])
    assert golds(load("gsm8k", folder, split="test")) == ["4", "5"]
    assert golds(load("gsm8k", folder, split="train")) == ["0", "1", "2", "3"]
    with pytest.raises(ConfigError, match=r"^workload\.split: must be one of train, test, got None; choose one"):
        load("gsm8k", folder)
    with pytest.raises(ConfigError, match=r"^workload\.split: must be one of train, test, got 'tset'"):
        load("gsm8k", folder, split="tset")
    with pytest.raises(
        DataError, match=r"^workload\.dataset: must be a data set that can be read \(config main\), got .*'main' not found"
    ):
        load("gsm8k", folder, dataset_config="main", split="test")


def test_lines_and_a_single_split_need_no_more_and_give_what_the_file_gives(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = write_lines(tmp_path / "data" / "train.jsonl", [scibench(), scibench("2.5", "$10^3$", problem_text="b")])
    from_set = load("sci_xw", tmp_path / "data")
    from_file = load_problems(WorkloadConfig(name="sci_xw", path=str(path)), Letters())
    assert [problem.task for problem in from_set.problems] == [problem.task for problem in from_file.problems]
    assert from_set.content_hash == from_file.content_hash


def test_pictures_are_not_decoded_and_their_rows_are_left_out(tmp_path: Path) -> None:
    import datasets

    rows = [olympiad("1", image_1=None), olympiad("2", question="b", image_1={"bytes": b"no picture", "path": None})]
    features = datasets.Features(
        {
            **datasets.Dataset.from_list(rows[:1]).features,
            **{field: datasets.Value("string") for field in ("context", "unit", "error")},
            "image_1": datasets.Image(),
        }
    )
    (tmp_path / "data").mkdir()
    datasets.Dataset.from_list(rows, features=features).to_parquet(tmp_path / "data" / "train.parquet")
    workload = load("olyphys", tmp_path / "data")
    assert golds(workload) == ["1"]
    assert workload.left_out == {"needs a picture": 1}


def test_a_broken_row_names_data_set_split_and_index(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data" / "train.parquet", [*GSM8K, {"question": "a", "answer": "no mark"}])
    with pytest.raises(DataError, match=r"data:train\[6\]: answer must end with #### and a number, got 'no mark'"):
        load("gsm8k", tmp_path / "data")


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\xff"])
def test_an_empty_and_a_broken_directory_are_one_line(content: bytes | None, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    if content is not None:
        (folder / "train.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=r"^workload\.dataset: must ") as caught:
        load("gsm8k", folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["no-one/no-such-set", "bad id", "./no/such/folder"])
def test_a_hub_out_of_reach_and_an_id_that_is_none_are_told_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi

    closed_port = HfApi(endpoint="http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: closed_port)
    start_s = time.monotonic()
    with pytest.raises(DataError, match=r"^workload\.dataset: .*; ") as caught:
        load("gsm8k", Path(name))
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start_s < 20  # the library alone would try again for longer


def test_without_the_library_the_extra_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['datasets'] = None\n"
        "from common import cli\n"
        "sys.exit(cli.run(['workloads', 'show', 'gsm8k', 'dataset=openai/gsm8k']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "workload.dataset: needs the package datasets" in done.stderr
    assert "install rolloutpipe[hub], or give a file by workload.path" in done.stderr
