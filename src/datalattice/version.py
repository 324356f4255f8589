"""Version: of this package, for what it tells others of itself."""

from typing import Final

VERSION: Final = "0.1.0"
