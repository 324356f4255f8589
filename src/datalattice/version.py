"""Version: the version of this package, as printed and as sent to peers and callers."""

from typing import Final

VERSION: Final = "0.1.0"
