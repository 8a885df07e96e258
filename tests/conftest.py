"""Set before torch or triton is imported anywhere: no test reaches out, kernels run in Triton's interpreter."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRITON_INTERPRET"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
