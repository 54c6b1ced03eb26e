"""What a router in Python needs of Reprise: decisions, and reports of what became of them.

client.py   `Client` asks `POST /route`, and tells `POST /feedback` in a thread of its own
prompt.py   `prompt_of` takes of a request what `/route` makes tokens of
"""

from reprise_client.client import Client, Decision, Refusal, Report, Unanswered
from reprise_client.prompt import prompt_of

__all__ = ["Client", "Decision", "Refusal", "Report", "Unanswered", "prompt_of"]
