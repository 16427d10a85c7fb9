"""vLLM's own OpenAI server around an engine that runs already. All of it runs in the engine's actor, by `Served.plant`."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

TIMEOUT_S = 60.0


def serve(engine: Any) -> str:
    """The address on the loopback device; serves as long as the actor lives."""
    return str(run(engine, start_server(engine._llm)))


def hold(engine: Any) -> None:
    """Let nothing start, and keep all that comes."""
    run(engine, engine._llm.pause_generation(mode="keep", clear_cache=False))


def release(engine: Any, num_requests: int) -> None:
    """Let them start, as soon as so many are there."""
    deadline = time.monotonic() + TIMEOUT_S
    while engine._llm.output_processor.get_num_unfinished_requests() < num_requests and time.monotonic() < deadline:
        time.sleep(0.02)
    run(engine, engine._llm.resume_generation())


def run(engine: Any, call: Coroutine[Any, Any, Any]) -> Any:
    # Ray runs planted functions in a thread beside the actor's event loop.
    return asyncio.run_coroutine_threadsafe(call, engine._llm.output_handler.get_loop()).result(TIMEOUT_S)


async def start_server(llm: Any) -> str:
    import uvicorn
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    tasks = await llm.get_supported_tasks()
    words = ["--model", llm.model_config.model, "--served-model-name", "tiny", "--disable-log-stats"]
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    app = build_app(arguments, tasks, llm.model_config)
    await init_app_state(llm, app.state, arguments, tasks)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    llm.http_server = asyncio.create_task(server.serve())  # kept, or it would be collected as garbage
    while not server.started:
        await asyncio.sleep(0.02)
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
