"""Records of a Hugging Face data set, by id or local directory, through the library `datasets` (extra `hub`).

No code of a data set is run: the library refuses those that bring a script. The hub is asked once before the library is, which
would otherwise try again for half a minute. With HF_HUB_OFFLINE=1 it is not asked, and a copy in the library's cache is used.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.config_workload import WorkloadConfig
from common.errors import ConfigError, DataError, explain

FIELD = "workload.dataset"
HUB_TIMEOUT_S = 5.0


def read_data_set(config: WorkloadConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and fields of each row. Raises ConfigError without the library and for a split that is not there, DataError for the
    rest: no such data set, the hub out of reach, broken files, no row.
    """
    name = str(config.dataset)
    rows, split = _load(config, name)
    if len(rows) == 0:
        raise DataError(explain(FIELD, f"must hold at least one row in its split {split}", name, "choose another split"))
    for index, values in enumerate(rows):
        yield f"{name}:{split}[{index}]", values


def _load(config: WorkloadConfig, name: str) -> tuple[Any, str]:
    try:
        import datasets
    except ModuleNotFoundError as error:
        remedy = f"install rolloutpipe[hub], or give a file by workload.path ({error.name} is missing)"
        raise ConfigError(explain(FIELD, "needs the package datasets", name, remedy)) from error
    datasets.disable_progress_bars()
    if not Path(name).is_dir():
        _ask_hub(name)
    try:
        splits = datasets.load_dataset(name, config.dataset_config)
    except Exception as error:  # the library raises what its many file formats raise
        rule = f"must be a data set that can be read (config {config.dataset_config})"
        raise DataError(explain(FIELD, rule, name, f"check id, files and workload.dataset_config ({_cause(error)})")) from error
    split = _split(config, list(splits))
    return _undecoded(datasets, splits[split]), split


def _ask_hub(name: str) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        HfApi().dataset_info(name, timeout=HUB_TIMEOUT_S)
    except OfflineModeIsEnabled:
        return
    except (HFValidationError, RepositoryNotFoundError) as error:
        rule = "must be a data set of the Hugging Face hub, or a directory"
        raise DataError(
            explain(FIELD, rule, name, f"check the spelling, and HF_TOKEN if it is private ({_cause(error)})")
        ) from error
    except Exception as error:  # whatever the network, a proxy or the hub itself answers
        remedy = f"give a file by workload.path, or set HF_HUB_OFFLINE=1 to use the library's cache ({_cause(error)})"
        raise DataError(explain(FIELD, "the Hugging Face hub cannot be reached", name, remedy)) from error


def _split(config: WorkloadConfig, splits: list[str]) -> str:
    if config.split is None and len(splits) == 1:
        return splits[0]
    if config.split not in splits:
        raise ConfigError(explain("workload.split", f"must be one of {', '.join(splits)}", config.split, "choose one"))
    return config.split


def _undecoded(datasets: Any, rows: Any) -> Any:
    """Without pictures and sounds made from their bytes, which would need further packages."""
    for column, feature in rows.features.items():
        if isinstance(feature, datasets.Image | datasets.Audio):
            rows = rows.cast_column(column, type(feature)(decode=False))
    return rows


def _cause(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]
