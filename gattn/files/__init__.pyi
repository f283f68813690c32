from .paths import load as load
from .paths import save as save
