"""What a survey reads."""

import gattn.surveys.needed  # noqa: F401
