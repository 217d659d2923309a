"""What is done to a live Poise, and how it is judged. The rows and their targets are in `live_faults.py`, beside this.

`turns` is what a turn is and what all of them share, `verdict` says which promises were kept in one; every other module
has the turns of some rows. What kills in the tests kills here: their parts are used where there are any.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent.parent / "tests"
if str(TESTS) not in sys.path:
    sys.path.append(str(TESTS))
