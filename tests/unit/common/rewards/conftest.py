"""Makes `planted_rewards` importable here and in the workers, which take the driver's search path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
