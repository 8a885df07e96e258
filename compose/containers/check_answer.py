"""Print a completion and what it cost; exit with 1 unless it has text and drafts were accepted on the way.

python check_answer.py ANSWER_JSON
"""

import json
import sys
from pathlib import Path

answer = json.loads(Path(sys.argv[1]).read_text())
text, usage = answer["choices"][0]["text"], answer["usage"]
print(text)
print(json.dumps(usage))
if not text or not usage["draftwood"]["accepted_nodes"]:
    sys.exit("the answer has no text, or no drafted token was accepted")
