"""What a zygote of the tests imports: it remembers which process did. Variables make it slow, or fail."""

from __future__ import annotations

import os
import threading
import time

IMPORTED_BY = os.getpid()
os.environ["SET_BY_IMPORT"] = "yes"

if "IMPORT_FAILS" in os.environ:
    raise ImportError("the module is broken")
if "IMPORT_STARTS_A_THREAD" in os.environ:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
while "IMPORT_WAITS_FOR" in os.environ and not os.path.exists(os.environ["IMPORT_WAITS_FOR"]):
    time.sleep(0.02)
