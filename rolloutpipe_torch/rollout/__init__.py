"""The rollout pool: vLLM engines in Ray actors, and how weights reach them.

pool.py       driver side: starts the replicas, checks that they fit, wraps each as an `Engine`
engine.py     the actor: one vLLM AsyncLLM, its settings, generate and publish
receiver.py   inside vLLM's worker: loads a spool's shards into the running model
lifetime.py   no engine process outlives its actor
"""
