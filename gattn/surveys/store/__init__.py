"""What a survey keeps on the disk."""

import gattn.surveys.needed  # noqa: F401
