"""The plug-in scheduler of the examples, which also writes down in which order requests start."""

from pathlib import Path
from typing import Any

from examples.vllm_frontier_scheduler import FrontierScheduler


class RecordingScheduler(FrontierScheduler):
    """Appends vLLM's ids, one a line, to the file that `additional_config["started"]` names."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = super().schedule(*args, **kwargs)
        with Path(self.vllm_config.additional_config["started"]).open("a", encoding="utf-8") as file:
            file.writelines(f"{request.req_id}\n" for request in output.scheduled_new_reqs)
        return output
