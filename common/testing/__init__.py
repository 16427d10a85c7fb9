"""Fakes of engine, trainer and verifier, contract checks that every real one also runs, and a loop with virtual time."""

from common.testing.contracts import check_engine, check_trainer
from common.testing.fake_engine import FakeEngine, Fault
from common.testing.fake_trainer import FakeTrainer
from common.testing.fakes import FakeVerifier, make_problems
from common.testing.virtual_time import run_virtual

__all__ = [
    "FakeEngine",
    "FakeTrainer",
    "FakeVerifier",
    "Fault",
    "check_engine",
    "check_trainer",
    "make_problems",
    "run_virtual",
]
