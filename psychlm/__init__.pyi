from .comparison import compare as compare

__version__: str
