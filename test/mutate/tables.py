"""All changes: each table adds its own to CHANGES."""

import table_cli  # noqa: F401
import table_cpu  # noqa: F401
import table_engine  # noqa: F401
import table_gpu  # noqa: F401
import table_model  # noqa: F401
from change import CHANGES  # noqa: F401
