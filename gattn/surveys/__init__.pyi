from .ask.comparison import compare_heads as compare_heads
from .ask.statistics import head_statistics as head_statistics
