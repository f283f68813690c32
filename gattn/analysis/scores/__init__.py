"""Why a head attends where it does: scores taken apart by who wrote the residual stream."""
